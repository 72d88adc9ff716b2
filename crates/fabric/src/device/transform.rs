//! A device that applies a function to each block.

use datapipes_core::Result;

use super::{Body, DeviceChannels, Function, Spread};
use crate::channel::{BlockOutcome, Head, Reply};

pub(super) struct Transform {
    function: Box<dyn Function>,
    spread: Spread,
}

impl Transform {
    pub(super) fn new(function: Box<dyn Function>, spread: Spread) -> Transform {
        Transform { function, spread }
    }
}

impl Body for Transform {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        while let Some(block) = stage.receive()? {
            let head = block.head();
            let (function, spread) = (&mut self.function, self.spread);
            // The block is processed where it lies, and written to the memory of the next device.
            let done = if block.is_empty() {
                Ok(())
            } else {
                stage.send(spread, Head { end: false, ..head }, |target| match function.carries() {
                    true => block.copy_to(target).map(|()| block.len()),
                    false => function.apply(&block, target),
                })
            };
            if let Err(e) = done {
                block.reply(Reply { outcome: BlockOutcome::of_error(&e), word: 0 })?;
                return Err(e);
            }
            if head.end {
                let crc = self.function.finish();
                stage.end(block, None, crc)?;
            } else {
                // The reply comes only after the block was sent on: the credit limits the blocks in
                // the whole chain.
                block.done()?;
            }
        }
        Ok(())
    }
}
