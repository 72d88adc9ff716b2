//! What may be promised: checked when a flow is connected, so that a promise that was given is
//! kept.
//!
//! Minimum shares come first and rates are promised from what they leave, so the rule is one line:
//! *the sum of promised rates is at most the resource's rate times one minus the sum of the minimum
//! shares*. A rate nobody knows promises nothing.

use super::Scheduler;
use super::flow::{Limit, State};
use super::meter::{Meter, smooth_chunk};
use super::service::ServiceLevel;
use crate::backend::check_rate;
use crate::error::{Error, ErrorKind, Result};

impl Scheduler {
    /// The rates promised to flows together, in bytes/s.
    pub(super) fn promised_rate(&self) -> f64 {
        let promises = self.flows.iter().filter(|(_, state)| !state.leaving).filter_map(|(_, s)| s.service.at_least);
        // An empty sum of floats is -0.
        promises.sum::<f64>() + 0.0
    }

    /// A new flow's state, if what it asks for makes sense and can be kept.
    pub(super) fn admit(&self, service: ServiceLevel) -> Result<State> {
        for (knob, rate) in [("at_least", service.at_least), ("at_most", service.at_most)] {
            if let Some(rate) = rate {
                check_rate(knob, rate)?;
            }
        }
        if let (Some(least), Some(most)) = (service.at_least, service.at_most)
            && least > most
        {
            let both = format!("at least {least} bytes/s and at most {most} bytes/s contradict each other");
            return Err(
                Error::new(ErrorKind::InvalidInput, "connect", both).with_advice("raise the one or lower the other")
            );
        }
        if let Some(rate) = service.at_least {
            self.check_promise(rate)?;
        }
        let chunk = self.policy.chunk_bytes;
        let promise = service.at_least.map(|rate| Meter::new(rate, chunk));
        let limit = service.at_most.map(|rate| {
            let chunk = smooth_chunk(rate, chunk);
            Limit { meter: Meter::new(rate, chunk), chunk }
        });
        Ok(State::new(service, limit, promise))
    }

    fn check_promise(&self, rate: f64) -> Result<()> {
        let refused = |why: String| Error::new(ErrorKind::Unsupported, "connect", why);
        let Some(resource) = self.policy.rate else {
            let why = format!("at least {rate:.0} bytes/s cannot be promised: the resource's rate is not known");
            return Err(refused(why).with_advice("measure or state its rate, or ask for a class instead of a rate"));
        };
        let (shares, promised) = (1.0 - self.policy.promisable(), self.promised_rate());
        let left = resource * self.policy.promisable() - promised;
        // What is left by the error's own words must be granted, whatever was rounded on the way.
        if rate <= left + 0.5 {
            return Ok(());
        }
        let left = left.max(0.0);
        let why = format!(
            "at least {rate:.0} bytes/s cannot be promised: of {resource:.0} bytes/s {promised:.0} are promised and \
             {:.0} % are minimum shares of the classes, so {left:.0} are left",
            shares * 100.0
        );
        Err(refused(why).with_advice(match left >= 1.0 {
            true => format!("ask for at least {left:.0} bytes/s or less, or for a class instead of a rate"),
            false => "disconnect a pipe with a promised rate, or ask for a class instead of a rate".to_owned(),
        }))
    }
}
