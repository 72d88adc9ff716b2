//! `cargo xtask soak [--minutes N] [--seed S] [--dir DIR] [--no-clients]`: random pipes, faults and
//! cancellations in all flavors for a while, and clients of `dpiped` beside them that are killed,
//! flood it and leave in the middle.
//!
//! The program is `crates/datapipes/examples/soak`; it is built with the checks of the dev profile
//! (overflow, assertions). It is no part of CI. Its files, at most some hundred MB, have no names
//! and are in `target/` unless said otherwise: a real disk. The clients are those of the service's
//! tests (`misbehaviour`, which look at what each left behind), again and again until the program
//! has ended.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::TaskResult;
use crate::steps::{cargo, finish, root};

const CLIENTS: [&str; 5] = ["test", "--package", "datapipes-service", "--test", "misbehaviour"];

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    let dir = root().join("target/soak");
    std::fs::create_dir_all(&dir)?;
    let program = ["--package", "datapipes", "--example", "soak"];
    let has_clients = !args.iter().any(|arg| arg == "--no-clients");
    let args: Vec<&String> = args.iter().filter(|arg| *arg != "--no-clients").collect();
    // Built before either runs, so that they run beside each other from the beginning.
    finish(cargo(&["build"]).args(program))?;
    if has_clients {
        finish(cargo(&CLIENTS).arg("--no-run"))?;
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = has_clients.then(|| scope.spawn(|| clients(&over)));
        let soak = finish(cargo(&["run"]).args(program).args(["--", "--dir"]).arg(dir).args(args));
        over.store(true, Ordering::SeqCst);
        let turns = clients.map(|clients| clients.join().map_err(|_| "a thread of the soak panicked".to_owned()));
        soak?;
        if let Some(turns) = turns {
            println!("clients that leave: {} turns", turns??);
        }
        Ok(())
    })
}

/// Runs the clients until the soak is over, once at least; how often.
fn clients(over: &AtomicBool) -> Result<u64, String> {
    let mut turns = 0;
    while turns == 0 || !over.load(Ordering::SeqCst) {
        let mut command: Command = cargo(&CLIENTS);
        let output = command.stdin(Stdio::null()).output().map_err(|e| format!("the clients of dpiped: {e}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout);
            eprintln!("{said}");
            return Err(format!("the clients of dpiped, turn {turns}: {} (see above)", output.status));
        }
        turns += 1;
    }
    Ok(turns)
}
