//! Work queues in made trees of sysfs, and the reasons against those that cannot be used.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::fs;
use std::path::Path;

use datapipes_core::topology::Topology;
use datapipes_dma::{
    Descriptor, DescriptorFlags, DevicePortal, EngineOperation, Portal, QueueDiscovery, QueueMode, Submission,
    WorkQueueFacts,
};
use datapipes_testkit::TempFolder;

/// A tree as the driver shows it: one device, one shared and one dedicated queue of type `user`.
fn tree() -> TempFolder {
    let root = TempFolder::new().unwrap();
    let device = [
        ("state", "enabled"),
        ("pasid_enabled", "1"),
        ("max_transfer_size", "2147483648"),
        ("max_batch_size", "1024"),
        ("numa_node", "1"),
    ];
    device.iter().for_each(|(name, value)| put(&root, "dsa0", name, value));
    for (queue, mode, size) in [("wq0.0", "shared", "16"), ("wq0.1", "dedicated", "8")] {
        let attributes = [
            ("type", "user"),
            ("state", "enabled"),
            ("mode", mode),
            ("size", size),
            ("priority", "10"),
            ("group_id", "0"),
            ("max_transfer_size", "2097152"),
            ("max_batch_size", "32"),
            ("block_on_fault", "1"),
        ];
        attributes.iter().for_each(|(name, value)| put(&root, queue, name, value));
        file(&root, queue);
    }
    root
}

fn put(root: &TempFolder, device: &str, attribute: &str, value: &str) {
    let folder = root.path("sys/bus/dsa/devices").join(device);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(attribute), format!("{value}\n")).unwrap();
}

fn file(root: &TempFolder, queue: &str) {
    fs::create_dir_all(root.path("dev/dsa")).unwrap();
    fs::write(root.path("dev/dsa").join(queue), "").unwrap();
}

fn found(root: &TempFolder) -> QueueDiscovery {
    QueueDiscovery::under(root.at())
}

fn names(found: &QueueDiscovery) -> Vec<&str> {
    found.usable.iter().map(|queue| queue.name.as_str()).collect()
}

#[test]
fn the_queues_of_a_machine_and_their_facts() {
    let root = tree();
    let found = found(&root);
    assert_eq!((names(&found), found.absent.len()), (vec!["wq0.0", "wq0.1"], 0));
    let devices = root.path("sys/bus/dsa/devices");
    let expected = WorkQueueFacts {
        name: "wq0.1".into(),
        device: "dsa0".into(),
        path: root.path("dev/dsa/wq0.1"),
        sysfs: [devices.join("dsa0"), devices.join("wq0.1")],
        mode: QueueMode::Dedicated,
        size: 8,
        priority: 10,
        group: Some(0),
        max_transfer_bytes: 2 << 20,
        max_batch: 32,
        block_on_fault: true,
        node: Some(1),
    };
    assert_eq!(found.usable[1], expected);
    assert_eq!(
        expected.summary(),
        "wq0.1 of dsa0: dedicated, 8 entries, priority 10, group 0, up to 2097152 bytes a descriptor, 32 a batch, \
         waits for missing pages"
    );
    assert_eq!(expected.check_enabled(), Ok(()));
    put(&root, "dsa0", "state", "halted");
    assert_eq!(expected.check_enabled(), Err("dsa0 is halted".into()));
    fs::remove_dir_all(devices.join("dsa0")).unwrap();
    assert_eq!(expected.check_enabled(), Err("dsa0 is gone".into()));
}

#[test]
fn what_keeps_all_queues_from_use() {
    let nothing = QueueDiscovery::under(Path::new("/nonexistent"));
    assert!(nothing.usable.is_empty() && nothing.reason().contains("no driver"), "{nothing:?}");
    let cases: [(&str, &str, &str); 3] = [
        ("state", "disabled", "dsa0: it is disabled"),
        ("pasid_enabled", "0", "dsa0: no shared virtual memory: pasid_enabled is 0"),
        ("state", "", "dsa0: it is "),
    ];
    for (attribute, value, why) in cases {
        let root = tree();
        put(&root, "dsa0", attribute, value);
        let found = found(&root);
        assert!(found.usable.is_empty() && found.reason().contains(why), "{found:?}");
    }
    let root = tree();
    fs::remove_file(root.path("sys/bus/dsa/devices/dsa0/pasid_enabled")).unwrap();
    assert!(found(&root).reason().contains("pasid_enabled cannot be read"));
    // An analytics accelerator is on the same bus, and is no engine for copies.
    let root = TempFolder::new().unwrap();
    put(&root, "iax1", "state", "enabled");
    put(&root, "wq1.0", "type", "user");
    assert!(found(&root).reason().contains("no DSA device"));
    let root = tree();
    fs::remove_dir_all(root.path("sys/bus/dsa/devices/wq0.0")).unwrap();
    fs::remove_dir_all(root.path("sys/bus/dsa/devices/wq0.1")).unwrap();
    assert!(found(&root).reason().contains("dsa0: it has no work queue"));
}

#[test]
fn what_keeps_one_queue_from_use_and_leaves_the_other() {
    let cases: [(&str, &str, &str); 8] = [
        ("type", "kernel", "wq0.0: it is of type kernel, not user"),
        ("type", "none", "wq0.0: it is not configured"),
        ("state", "disabled", "wq0.0: it is disabled"),
        ("mode", "", "wq0.0: its mode is \"\""),
        ("mode", "both", "wq0.0: its mode is \"both\""),
        ("size", "0", "wq0.0: its size is 0"),
        ("size", "-3", "wq0.0: its size is 0"),
        ("size", "many", "wq0.0: its size is 0"),
    ];
    for (attribute, value, why) in cases {
        let root = tree();
        put(&root, "wq0.0", attribute, value);
        let found = found(&root);
        assert_eq!(names(&found), ["wq0.1"]);
        assert!(found.reason().starts_with(why), "{found:?}");
    }
    let root = tree();
    fs::remove_file(root.path("dev/dsa/wq0.0")).unwrap();
    assert!(found(&root).reason().contains("wq0.0: /dev/dsa/wq0.0 does not exist"));
}

#[test]
fn a_queue_without_limits_of_its_own_has_those_of_its_device() {
    let root = tree();
    for attribute in ["max_transfer_size", "max_batch_size", "group_id", "priority", "block_on_fault"] {
        fs::remove_file(root.path("sys/bus/dsa/devices/wq0.0").join(attribute)).unwrap();
    }
    let found = found(&root);
    let queue = &found.usable[0];
    assert_eq!((queue.max_transfer_bytes, queue.max_batch), (2 << 30, 1024));
    assert_eq!((queue.group, queue.priority, queue.block_on_fault), (None, 0, false));
    // A driver for hardware without batches shows no limit for them.
    fs::remove_file(root.path("sys/bus/dsa/devices/dsa0/max_batch_size")).unwrap();
    assert_eq!(QueueDiscovery::under(root.at()).usable[0].max_batch, 0);
}

fn submit(facts: &WorkQueueFacts, descriptor: &Descriptor) -> Submission {
    let mut portal = DevicePortal::open(facts, &Topology::discover()).unwrap();
    assert!(!portal.takes_batches());
    // SAFETY: what takes the bytes here runs no descriptors.
    unsafe { portal.submit(&descriptor.encode()) }
}

#[test]
fn where_a_portal_cannot_be_mapped_descriptors_are_written_to_the_file() {
    let root = tree();
    let mut facts = found(&root).usable[0].clone();
    let descriptor = Descriptor {
        pasid: 0,
        privileged: false,
        flags: DescriptorFlags::COMPLETION_VALID | DescriptorFlags::REQUEST_COMPLETION,
        completion: 0x1000,
        interrupt_handle: 0,
        operation: EngineOperation::Memmove { source: 1, target: 2, len: 3 },
    };
    // A named pipe cannot be mapped, and gives back what was written.
    facts.path = root.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &facts.path, rustix::fs::Mode::RWXU).unwrap();
    let mut reader = fs::File::options().read(true).write(true).open(&facts.path).unwrap();
    assert_eq!(submit(&facts, &descriptor), Submission::Accepted);
    let mut bytes = [0; 64];
    std::io::Read::read_exact(&mut reader, &mut bytes).unwrap();
    assert_eq!(bytes, descriptor.encode().0);
    // A file that takes nothing, and one that is not there.
    facts.path = "/dev/full".into();
    assert!(matches!(submit(&facts, &descriptor), Submission::Lost(why) if why.starts_with("write: ")));
    facts.path = root.path("dev/dsa/wq9.9");
    let e = DevicePortal::open(&facts, &Topology::discover()).err().unwrap();
    assert_eq!(e.kind(), datapipes_core::ErrorKind::NotFound);
}

#[test]
fn a_portal_is_quiet_once_its_driver_disabled_the_queue() {
    let root = tree();
    let mut facts = found(&root).usable[0].clone();
    facts.path = "/dev/null".into();
    let open = || DevicePortal::open(&facts, &Topology::discover()).unwrap();
    // Nobody knows what an enabled queue still does.
    assert!(open().stop().unwrap_err().contains("may be in flight"));
    put(&root, "wq0.0", "state", "disabled");
    let mut portal = open();
    assert_eq!(portal.check(), Err("wq0.0 is disabled".into()));
    assert_eq!(portal.stop(), Ok(()));
    assert_eq!(portal.check(), Err("it was closed".into()));
}

#[test]
fn a_file_without_permission_is_told() {
    let root = tree();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(root.path("dev/dsa/wq0.0"), fs::Permissions::from_mode(0o000)).unwrap();
    let found = found(&root);
    if rustix::process::geteuid().is_root() {
        // Root has every permission.
        assert_eq!(names(&found), ["wq0.0", "wq0.1"]);
        return println!("NOT APPLICABLE: a_file_without_permission_is_told: this is root");
    }
    assert!(found.reason().contains("wq0.0: no permission for /dev/dsa/wq0.0"), "{found:?}");
}
