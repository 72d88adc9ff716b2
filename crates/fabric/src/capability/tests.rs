//! The tree compared with a simple model.

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

#[test]
fn delegations_are_limited_and_revoking_frees_them() {
    let mut tree = Tree::with_limits(DelegationLimits { application: 10, device: 3 });
    let device = Party(7);
    let root = tree.root(ObjectId(1), ALL, device);
    let first = tree.delegate(root, device, device, ALL).unwrap();
    let second = tree.delegate(first, device, device, ALL).unwrap();
    tree.delegate(second, device, device, ALL).unwrap();
    assert_eq!(tree.delegate(second, device, device, ALL).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(tree.revoke(second, device).unwrap().len(), 2);
    tree.delegate(first, device, Party(8), ALL).unwrap();
    // A capability of another holder is charged to the party that delegated it, and credited to
    // that party when it is removed.
    tree.delegate(first, device, Party(8), ALL).unwrap();
    assert_eq!(tree.delegate(first, device, Party(8), ALL).unwrap_err().kind(), ErrorKind::NoSpace);
    tree.drop_party(Party(8));
    tree.delegate(first, device, Party(9), ALL).unwrap();
    tree.drop_object(ObjectId(1));
    assert!(tree.is_empty() && tree.held.is_empty() && tree.roots.is_empty() && tree.delegated.is_empty(), "{tree:?}");
}

/// This took minutes when the steps grew with the square.
#[test]
fn a_long_chain_and_a_wide_fan_go_in_as_many_steps_as_they_have_links() {
    let most = DelegationLimits { application: usize::MAX, device: usize::MAX };
    let (mut tree, own) = (Tree::with_limits(most), Party::APPLICATION);
    const COUNT: usize = 200_000;
    let root = tree.root(ObjectId(1), ALL, own);
    let (mut last, fan) = (root, tree.delegate(root, own, own, ALL).unwrap());
    for _ in 0..COUNT {
        last = tree.delegate(last, own, own, ALL).unwrap();
        tree.delegate(fan, own, own, ALL).unwrap();
    }
    assert_eq!(tree.revoke(root, own).unwrap().len(), 2 * COUNT + 2);
    assert!(tree.is_empty());
}

/// A model that keeps every capability that ever existed, and looks up the ancestors of each.
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
