//! The life of a device process: boot, lock-down, work.

use std::os::fd::OwnedFd;

use datapipes_core::Result;

use super::sandbox::confine;
use super::{alone, inherited};
use crate::control::party::client::{Boot, ControllerClient};
use crate::control::protocol::Ask;
use crate::device::{DeviceChannels, Functions, StreamReport, body};

/// Runs a device until the controller ends it.
pub(super) fn live(socket: OwnedFd, functions: &Functions) -> Result<()> {
    let mut client = ControllerClient::new(socket);
    let Boot { name, role, threads, given } = client.boot()?;
    alone::keep_orphans()?;
    let mut body = body(role, given, functions).map_err(|e| e.within(format!("device {name}")))?;
    let descriptors = inherited::count();
    let confined = confine(client.socket(), threads)?;
    client.say(&Ask::Ready { confined, descriptors })?;
    while let Some((ins, outs)) = client.next_work()? {
        let outcome = match client.ends(ins, outs) {
            Ok(Some((inlets, outlets))) => body.run(&mut DeviceChannels::new(inlets, outlets, &mut client)),
            Ok(None) => return Ok(()),
            Err(error) => Err(error),
        };
        // The ends are dropped now, and a waiting peer was told.
        if let Err(error) = outcome {
            client.say(&Ask::Report(StreamReport::failed(&error)))?;
        }
    }
    Ok(())
}
