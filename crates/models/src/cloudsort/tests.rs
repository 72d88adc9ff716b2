use super::*;

fn seconds(inputs: &CloudSortInputs, level: InputLevel) -> f64 {
    estimate(inputs, level).seconds
}

/// Both runs that were published lie within the model's range. Nothing in it is fitted to them.
#[test]
fn the_published_runs_are_within_the_range() {
    let record = CloudSortInputs::record();
    let small = CloudSortInputs { nodes: 10, bytes: 1_000_000_000_000, ..record.clone() };
    for (inputs, published) in [(record, RECORD_SECONDS), (small, SMALL_RUN_SECONDS)] {
        let (best, worst) = (seconds(&inputs, InputLevel::Best), seconds(&inputs, InputLevel::Worst));
        assert!((best..=worst).contains(&published), "{best} {published} {worst}");
    }
}

#[test]
fn worse_inputs_never_make_a_sort_faster() {
    let record = CloudSortInputs::record();
    for one in &record.inputs {
        let at = |value| seconds(&record.clone().with(one.input, value), InputLevel::Likely);
        assert!(at(one.worst) >= at(one.likely) && at(one.likely) >= at(one.best), "{}", one.name);
    }
}

#[test]
fn a_phase_is_its_busiest_resource_by_hand() {
    // One node keeps all: 1 GB in, no exchange.
    let mut inputs = CloudSortInputs { nodes: 1, bytes: 1_000_000_000, ..CloudSortInputs::record() };
    for (input, value) in [
        (CloudInput::Processors, 1.0),
        (CloudInput::ProcessorShare, 1.0),
        (CloudInput::ProcessorSpeed, 1.0),
        (CloudInput::SortSeconds, 2.0),
        (CloudInput::MergeSeconds, 3.0),
        (CloudInput::ObjectSeconds, 0.5),
        (CloudInput::Network, 10.0),
        (CloudInput::ObjectStore, 10.0),
        (CloudInput::DiskRead, 0.125),
        (CloudInput::DiskWrite, 10.0),
        (CloudInput::Slack, 0.0),
        (CloudInput::Losses, 0.0),
        (CloudInput::Fixed, 0.0),
    ] {
        inputs = inputs.with(input, value);
    }
    let made = estimate(&inputs, InputLevel::Likely);
    let phases: Vec<_> = made.phases.iter().map(|phase| (phase.bound, phase.seconds)).collect();
    assert_eq!(phases, [(PhaseResource::Processor, 5.5), (PhaseResource::Disk, 8.0)]);
    assert_eq!(made.seconds, 13.5);
    // A slack of a fifth makes a phase longer by a quarter.
    assert_eq!(estimate(&inputs.with(CloudInput::Slack, 0.2), InputLevel::Likely).seconds, 13.5 * 1.25);
}

#[test]
fn every_input_has_a_name_of_its_own_and_a_range_in_order() {
    let inputs = CloudSortInputs::record().inputs;
    for (i, one) in inputs.iter().enumerate() {
        assert!(inputs.iter().skip(i + 1).all(|other| other.name != one.name && other.input != one.input));
        assert!(one.likely >= one.worst.min(one.best) && one.likely <= one.worst.max(one.best), "{}", one.name);
    }
    assert!(influences(&CloudSortInputs::record()).len() > 5 && what_ifs(&CloudSortInputs::record()).len() > 5);
}
