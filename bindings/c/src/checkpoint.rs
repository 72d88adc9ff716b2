//! Checkpoints: state that is saved and restored as a whole.

use std::ffi::c_char;

use datapipes::durable::checkpoint::{Checkpoints, SaveOptions, ignore_progress};
use datapipes::{Dram, Error, ErrorKind, Result};

use crate::arguments;
use crate::door::enter;
use crate::error::dp_error;
use crate::machine::{MACHINES, dp_machine};
use crate::place::{PLACES, dp_place, dram_of};

/// A region of a checkpoint: a name and the memory that it is saved from or restored into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_region {
    /// Its name.
    pub name: *const c_char,
    /// Its bytes.
    pub memory: dp_place,
}

/// # Safety
/// `regions` is null or has `count` elements, whose names are null or texts that end with NUL.
unsafe fn regions_of<'a>(regions: *const dp_region, count: usize) -> Result<Vec<(&'a str, Dram)>> {
    // SAFETY: the caller of this function says so.
    let regions: &'a [dp_region] = unsafe { arguments::slice(regions, count, "regions")? };
    let region = |region: &dp_region| {
        // SAFETY: as above.
        let name = unsafe { arguments::text(region.name, "the name of a region")? };
        Ok((name, dram_of(&*PLACES.get(region.memory.id)?, "use as a region")?))
    };
    regions.iter().map(region).collect()
}

/// Saves regions as a new checkpoint in a folder. It becomes visible only when all of it is durable.
/// `keep` is how many checkpoints are kept, the new one included; 0 for all. `*number`, if it is not
/// NULL, becomes its number.
///
/// Errors: DP_BUSY while a region is written to; DP_NO_SPACE. After an error nothing of it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_checkpoint_save(
    machine: dp_machine,
    folder: *const c_char,
    regions: *const dp_region,
    count: usize,
    keep: usize,
    number: *mut u64,
) -> dp_error {
    enter(|| {
        arguments::check_optional(number, "number")?;
        // SAFETY: the header says what the pointers are.
        let (folder, regions) = unsafe { (arguments::path(folder, "folder")?, regions_of(regions, count)?) };
        let store = Checkpoints::at(&*MACHINES.get(machine.id)?, folder);
        let named: Vec<(&str, &Dram)> = regions.iter().map(|(name, memory)| (*name, memory)).collect();
        let options = SaveOptions::default().keep((keep != 0).then_some(keep));
        let saved = store.save(&named, &options, &mut ignore_progress)?;
        if !number.is_null() {
            // SAFETY: as above.
            unsafe { number.write(saved.number) };
        }
        Ok(())
    })
}

/// Restores regions from a checkpoint; `number` 0 means the newest. `*restored`, if it is not NULL,
/// becomes its number. After an error the contents of the regions are undefined.
///
/// Errors: DP_NOT_FOUND; DP_INVALID_INPUT for a region of another length; DP_CORRUPT with the region
/// and the offset in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_checkpoint_restore(
    machine: dp_machine,
    folder: *const c_char,
    number: u64,
    regions: *const dp_region,
    count: usize,
    restored: *mut u64,
) -> dp_error {
    enter(|| {
        arguments::check_optional(restored, "restored")?;
        // SAFETY: the header says what the pointers are.
        let (folder, regions) = unsafe { (arguments::path(folder, "folder")?, regions_of(regions, count)?) };
        let store = Checkpoints::at(&*MACHINES.get(machine.id)?, folder);
        let checkpoint = if number == 0 { store.latest()? } else { store.open(number)? };
        let named: Vec<(&str, &Dram)> = regions.iter().map(|(name, memory)| (*name, memory)).collect();
        checkpoint.restore_into(&named, &mut ignore_progress)?;
        if !restored.is_null() {
            // SAFETY: as above.
            unsafe { restored.write(checkpoint.manifest().number) };
        }
        Ok(())
    })
}

/// Copies the checkpoints of a folder as JSON, the oldest first, as `snprintf` does; `*len` becomes the
/// whole length. Each has its number, its path, and its contents or why it is damaged. Only the end of
/// each file is looked at.
///
/// Errors: DP_NOT_FOUND where the folder is missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_checkpoint_list(
    machine: dp_machine,
    folder: *const c_char,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        // SAFETY: the header says what the pointer is.
        let folder = unsafe { arguments::path(folder, "folder")? };
        if !folder.is_dir() {
            let why = format!("{} is not a folder", folder.display());
            return Err(Error::new(ErrorKind::NotFound, "list", why));
        }
        let shown = arguments::json(&Checkpoints::at(&*MACHINES.get(machine.id)?, folder).list()?)?;
        // SAFETY: as above.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Gives the length of a region of a checkpoint in bytes; `number` 0 means the newest.
///
/// Errors: DP_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_checkpoint_region_length(
    machine: dp_machine,
    folder: *const c_char,
    number: u64,
    name: *const c_char,
    len: *mut u64,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointers are.
        let (folder, name) = unsafe { (arguments::path(folder, "folder")?, arguments::text(name, "name")?) };
        let store = Checkpoints::at(&*MACHINES.get(machine.id)?, folder);
        let checkpoint = if number == 0 { store.latest()? } else { store.open(number)? };
        let region = checkpoint.manifest().regions.iter().find(|region| region.name == name).ok_or_else(|| {
            let why = format!("the checkpoint {} has no region `{name}`", checkpoint.manifest().number);
            Error::new(ErrorKind::NotFound, "look up", why)
        })?;
        // SAFETY: as above.
        unsafe { arguments::give(len, "len", region.len) }
    })
}
