//! The pages that engines behind an IOMMU can reach, counted by the operations that use them.
//!
//! Pages are mapped for as long as an operation that uses them is under way, and not longer: memory
//! that was freed and mapped anew has other pages at the same addresses, and an engine would go on
//! writing to the old ones. The kernel unmaps only what was mapped as one, so runs of pages are
//! entries that are never cut:
//!
//! ```text
//! a range of bytes:        .....|xxxx|xxxxxxxxxxxxxx|xx...|
//! becomes the entries            first    middle     last       those that exist already gain a user
//! ```
//! The first and the last page may hold bytes of other memory, which may live longer or shorter.
//! The pages between belong to one region, and whoever uses any of them keeps it alive.

use std::collections::BTreeMap;
use std::ops::Range;

use datapipes_core::process::page_size;

/// Maps pages for engines, at the addresses that they have in the process.
pub(super) trait PageMapper {
    fn map(&mut self, pages: Range<usize>) -> Result<(), String>;
    fn unmap(&mut self, pages: Range<usize>) -> Result<(), String>;
}

struct Entry {
    end: usize,
    users: u32,
    /// Why it could not be unmapped. Its pages cannot be used any more.
    stuck: Option<String>,
}

/// Runs of pages by their first address.
#[derive(Default)]
pub(super) struct MappedPages(BTreeMap<usize, Entry>);

impl MappedPages {
    /// Maps what is not mapped of the pages of these bytes, and returns the entries that hold them.
    ///
    /// # Errors
    /// Why pages could not be mapped. Nothing is held then.
    pub(super) fn hold(&mut self, bytes: Range<usize>, mapper: &mut dyn PageMapper) -> Result<Vec<usize>, String> {
        let page = page_size();
        let Some(end) = bytes.end.checked_next_multiple_of(page).filter(|_| bytes.start < bytes.end) else {
            return if bytes.start == bytes.end { Ok(Vec::new()) } else { Err("no range of addresses".into()) };
        };
        let start = bytes.start / page * page;
        let cuts = [start + page, end - page, end];
        let (mut held, mut at) = (Vec::new(), start);
        while at < end {
            match self.next(at, &cuts, mapper) {
                Ok((entry, next)) => {
                    held.push(entry);
                    at = next;
                }
                Err(why) => {
                    self.release(&held, mapper);
                    return Err(why);
                }
            }
        }
        Ok(held)
    }

    /// Takes the entry that has the page at `at`, or makes one. Returns it and its end.
    fn next(&mut self, at: usize, cuts: &[usize], mapper: &mut dyn PageMapper) -> Result<(usize, usize), String> {
        if let Some((start, entry)) = self.0.range_mut(..=at).next_back()
            && entry.end > at
        {
            if let Some(why) = &entry.stuck {
                return Err(format!("pages that were used before could not be unmapped: {why}"));
            }
            entry.users = entry.users.checked_add(1).ok_or("too many users of a page")?;
            return Ok((*start, entry.end));
        }
        let before = self.0.range(at..).next().map(|(start, _)| *start);
        let end = cuts.iter().copied().chain(before).filter(|cut| *cut > at).min().ok_or("no range of addresses")?;
        mapper.map(at..end)?;
        self.0.insert(at, Entry { end, users: 1, stuck: None });
        Ok((at, end))
    }

    /// Gives entries back, and unmaps those without users.
    pub(super) fn release(&mut self, held: &[usize], mapper: &mut dyn PageMapper) {
        for start in held {
            let Some(entry) = self.0.get_mut(start) else { continue };
            entry.users = entry.users.saturating_sub(1);
            if entry.users > 0 {
                continue;
            }
            match mapper.unmap(*start..entry.end) {
                Ok(()) => _ = self.0.remove(start),
                Err(why) => entry.stuck = Some(why),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use datapipes_testkit::{Random, seed};

    use super::*;

    /// An IOMMU: it maps no page twice, and unmaps only what was mapped as one.
    #[derive(Default)]
    struct Iommu {
        mapped: BTreeMap<usize, usize>,
        refuses: bool,
        keeps: bool,
    }

    impl Iommu {
        fn has(&self, page: usize) -> bool {
            self.mapped.range(..=page).next_back().is_some_and(|(_, end)| *end > page)
        }
    }

    impl PageMapper for Iommu {
        fn map(&mut self, pages: Range<usize>) -> Result<(), String> {
            if self.refuses {
                return Err("refused".into());
            }
            assert!(
                pages.start < pages.end
                    && pages.start.is_multiple_of(page_size())
                    && pages.end.is_multiple_of(page_size())
            );
            assert!(!pages.clone().step_by(page_size()).any(|page| self.has(page)), "mapped twice: {pages:?}");
            self.mapped.insert(pages.start, pages.end);
            Ok(())
        }

        fn unmap(&mut self, pages: Range<usize>) -> Result<(), String> {
            if self.keeps {
                return Err("kept".into());
            }
            assert_eq!(self.mapped.remove(&pages.start), Some(pages.end), "unmapped in part: {pages:?}");
            Ok(())
        }
    }

    #[test]
    fn what_is_used_is_mapped_once_and_nothing_else_is_mapped() {
        let mut random = Random(seed(0x10a7));
        let (mut pages, mut iommu) = (MappedPages::default(), Iommu::default());
        let mut used: HashMap<u64, (Range<usize>, Vec<usize>)> = HashMap::new();
        for number in 0..20_000u64 {
            if random.next() % 5 < 3 && used.len() < 20 {
                let start = (1 << 30) + random.next() as usize % (20 * page_size());
                let len = random.next() as usize % (6 * page_size());
                iommu.refuses = random.next().is_multiple_of(10);
                match pages.hold(start..start + len, &mut iommu) {
                    Ok(held) => _ = used.insert(number, (start..start + len, held)),
                    Err(why) => assert_eq!(why, "refused"),
                }
                iommu.refuses = false;
            } else if let Some(key) = used.keys().copied().min() {
                let (_, held) = used.remove(&key).unwrap();
                pages.release(&held, &mut iommu);
            }
            let in_use = |page: usize| {
                used.values()
                    .any(|(bytes, _)| !bytes.is_empty() && bytes.start < page + page_size() && page < bytes.end)
            };
            for page in (0..30).map(|n| (1 << 30) + n * page_size()) {
                assert!(!in_use(page) || iommu.has(page), "a page in use is not mapped");
            }
            // What is mapped has a user, at least in its run of pages.
            for (start, end) in &iommu.mapped {
                assert!((*start..*end).step_by(page_size()).any(in_use), "mapped without a user");
            }
        }
        let left: Vec<u64> = used.keys().copied().collect();
        left.iter().for_each(|key| pages.release(&used[key].1, &mut iommu));
        assert!(iommu.mapped.is_empty() && pages.0.is_empty());
    }

    #[test]
    fn a_neighbour_on_the_last_page_keeps_that_page_alone() {
        let (mut pages, mut iommu) = (MappedPages::default(), Iommu::default());
        let page = page_size();
        let long = pages.hold(page + 5..10 * page + 7, &mut iommu).unwrap();
        let [before, behind] = [page..page + 5, 10 * page + 7..10 * page + 9];
        let neighbours = [before, behind].map(|bytes| pages.hold(bytes, &mut iommu).unwrap());
        pages.release(&long, &mut iommu);
        let left: Vec<_> = iommu.mapped.iter().map(|(start, end)| (start / page, end / page)).collect();
        assert_eq!(left, [(1, 2), (10, 11)], "pages that may be freed are unmapped");
        neighbours.iter().for_each(|held| pages.release(held, &mut iommu));
        assert!(iommu.mapped.is_empty());
    }

    #[test]
    fn pages_that_stay_mapped_are_not_used_again_and_no_range_wraps() {
        let (mut pages, mut iommu) = (MappedPages::default(), Iommu { keeps: true, ..Iommu::default() });
        let page = page_size();
        let held = pages.hold(page..2 * page, &mut iommu).unwrap();
        pages.release(&held, &mut iommu);
        iommu.keeps = false;
        let why = pages.hold(0..4 * page, &mut iommu).unwrap_err();
        assert!(why.contains("could not be unmapped: kept"), "{why}");
        assert_eq!(iommu.mapped.len(), 1, "what was held until then is given back");
        assert!(pages.hold(usize::MAX - 10..usize::MAX, &mut iommu).is_err());
        assert_eq!(pages.hold(4096..4096, &mut iommu), Ok(Vec::new()));
    }
}
