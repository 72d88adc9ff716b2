//! The tree against a naive twin.

use proptest::prelude::*;

use super::*;

const ALL: Rights = Rights::SEND.and(Rights::RECEIVE).and(Rights::DELEGATE);

#[test]
fn rights_shrink_on_the_way_and_never_grow() {
    let mut tree = Tree::new();
    let (a, b, c) = (Party(1), Party(2), Party(3));
    let root = tree.root(ObjectId(9), ALL, a);
    let kind = |r: Result<Cap>| r.unwrap_err().kind();
    assert_eq!(kind(tree.delegate(root, b, c, Rights::SEND)), ErrorKind::PermissionDenied);
    assert_eq!(kind(tree.delegate(root, a, b, Rights::WRITE)), ErrorKind::PermissionDenied);
    assert_eq!(kind(tree.delegate(root, a, b, Rights::NONE)), ErrorKind::InvalidInput);
    let child = tree.delegate(root, a, b, Rights::SEND.and(Rights::DELEGATE)).unwrap();
    assert_eq!(kind(tree.delegate(child, b, c, Rights::RECEIVE)), ErrorKind::PermissionDenied);
    let leaf = tree.delegate(child, b, c, Rights::SEND).unwrap();
    assert_eq!(kind(tree.delegate(leaf, c, a, Rights::SEND)), ErrorKind::PermissionDenied);
    assert!(tree.commands(leaf, a) && tree.commands(leaf, b) && tree.commands(leaf, c));
    assert!(!tree.commands(child, c) && !tree.commands(root, b));
    assert_eq!(tree.revoke(child, c).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let gone: Vec<Cap> = tree.revoke(child, a).unwrap().into_iter().map(|(cap, _)| cap).collect();
    assert_eq!(gone, [leaf, child]);
    assert_eq!((tree.len(), tree.get(leaf).unwrap_err().kind()), (1, ErrorKind::NotFound));
    assert_eq!(format!("{ALL:?}"), r#"{"send", "receive", "delegate"}"#);
}

/// Keeps every capability that ever was, and asks each for its ancestors.
#[derive(Default)]
struct Twin(Vec<(Cap, Capability, bool)>);

impl Twin {
    fn dead(&self, cap: Cap) -> bool {
        let (_, c, revoked) = self.0.iter().find(|(name, ..)| *name == cap).unwrap();
        *revoked || c.parent.is_some_and(|p| self.dead(p))
    }
}

proptest! {
    #[test]
    fn no_right_outlives_or_exceeds_what_it_came_from(steps in proptest::collection::vec((0u8..10, any::<u8>(), 0u32..4, 0u32..4, 0u8..32), 1..80)) {
        let (mut tree, mut twin) = (Tree::new(), Twin::default());
        for (kind, pick, by, to, rights) in steps {
            let rights = Rights(rights);
            let known = if twin.0.is_empty() { Cap(999) } else { twin.0[usize::from(pick) % twin.0.len()].0 };
            match kind {
                0..3 => {
                    let cap = tree.root(ObjectId(pick.into()), rights, Party(by));
                    twin.0.push((cap, tree.get(cap).unwrap().clone(), false));
                }
                3..8 => if let Ok(cap) = tree.delegate(known, Party(by), Party(to), rights) {
                    let parent = twin.0.iter().find(|(c, ..)| *c == known).unwrap().1.clone();
                    prop_assert!(!twin.dead(known) && parent.rights.include(rights) && parent.holder == Party(by));
                    prop_assert!(parent.rights.include(Rights::DELEGATE));
                    twin.0.push((cap, tree.get(cap).unwrap().clone(), false));
                },
                8 => if let Ok(gone) = tree.revoke(known, Party(by)) {
                    prop_assert_eq!(gone.last().unwrap().0, known);
                    twin.0.iter_mut().find(|(c, ..)| *c == known).unwrap().2 = true;
                },
                _ => {
                    tree.drop_party(Party(by));
                    twin.0.iter_mut().filter(|(_, c, _)| c.holder == Party(by)).for_each(|c| c.2 = true);
                }
            }
            for (cap, capability, _) in &twin.0 {
                prop_assert_eq!(tree.get(*cap).ok(), (!twin.dead(*cap)).then_some(capability));
            }
        }
    }
}
