//! A check whether the space that a sort needs can exist at all, made before anything is written.

use std::path::{Path, PathBuf};

use datapipes_core::topology::BlockDevice;
use datapipes_core::{Error, Result, StagePlace};

/// Bytes that must find room, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) output_bytes: Option<u64>,
    pub(crate) spill_bytes: Option<u64>,
}

/// Refuses a sort that certainly will not fit. The output is given by a path on its device and the
/// bytes that it has there already.
pub(crate) fn check_space(places: &[StagePlace], output: Option<(PathBuf, u64)>, space: Space) -> Result<()> {
    let mut needs: Vec<(PathBuf, u64)> = Vec::new();
    if let (Some((dir, has)), Some(bytes)) = (output, space.output_bytes) {
        // A device that cannot be asked is skipped; opening the output has reported its errors.
        if device_of(&dir).is_ok() {
            needs.push((dir, bytes.saturating_sub(has)));
        }
    }
    if let Some(bytes) = space.spill_bytes {
        match places {
            // The output may go to the same folder, which must then hold both.
            [only] if only.as_folder().is_some() && only.most_bytes().is_none_or(|most| most >= bytes) => {
                needs.extend(only.as_folder().map(|dir| (dir.to_path_buf(), bytes)));
            }
            _ => check_together(places, bytes)?,
        }
    }
    let mut by_device: Vec<(String, u64, u64, PathBuf)> = Vec::new();
    for (dir, need) in needs {
        let Some((device, free)) = device_of(&dir)? else { continue };
        match by_device.iter_mut().find(|d| d.0 == device) {
            Some(known) => known.1 += need,
            None => by_device.push((device, need, free, dir)),
        }
    }
    for (_, need, free, dir) in by_device {
        if need > free {
            let why = format!("{} has {free} bytes free, and {need} are needed there", dir.display());
            return Err(refusal(why, space.spill_bytes.is_some_and(|bytes| bytes > 0)));
        }
    }
    Ok(())
}

/// Checks that several places hold the runs together. The free space of each device counts once.
fn check_together(places: &[StagePlace], need: u64) -> Result<()> {
    let mut devices: Vec<(String, u64, u64)> = Vec::new();
    let mut room = 0_u64;
    for place in places {
        let most = place.most_bytes();
        match (place.as_folder(), most) {
            (Some(dir), most) => {
                let Some((device, free)) = device_of(dir)? else { return Ok(()) };
                let limit = most.unwrap_or(u64::MAX);
                match devices.iter_mut().find(|d| d.0 == device) {
                    Some(known) => known.2 = known.2.saturating_add(limit),
                    None => devices.push((device, free, limit)),
                }
            }
            (None, Some(most)) => room = room.saturating_add(most),
            // The place says how much it holds only when it is opened.
            (None, None) => return Ok(()),
        }
    }
    let room = devices.iter().fold(room, |room, (_, free, limit)| room.saturating_add(*free.min(limit)));
    if need > room {
        let names: Vec<&str> = places.iter().map(StagePlace::name).collect();
        let have = if names.len() == 1 { "has" } else { "have" };
        return Err(refusal(format!("{} {have} room for {room} bytes, and {need} are needed", names.join(", ")), true));
    }
    Ok(())
}

/// The device behind a folder, and the bytes free there; `None` if that is not known.
fn device_of(dir: &Path) -> Result<Option<(String, u64)>> {
    let storage = BlockDevice::behind(dir)?;
    Ok(storage.available_bytes.map(|free| (storage.number.to_string(), free)))
}

/// The error where runs, or only an output, do not find room.
fn refusal(context: String, spills: bool) -> Error {
    let error = Error::os("sort", libc::ENOSPC, context);
    if !spills {
        return error.with_advice("nothing was written; name another place for the output");
    }
    error.with_advice(
        "nothing was written; name places with more room (`spill`), or another one for the output, give more memory \
         (`memory_bytes`), or have runs compressed (`compression`) if they may fit then",
    )
}
