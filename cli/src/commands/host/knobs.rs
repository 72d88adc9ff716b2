//! `dpipe knobs`: the machine's settings that decide how bytes move; a transaction over them.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use datapipes::{Error, ErrorKind, Result};
use datapipes_knobs::{
    KnobChange, KnobPlan, KnobTransaction, MachineKnob, MachineTree, RestoredKnobs, TransactionStep, forget_left_over,
    journaled, list, remove_stale_groups, restore_left_over, restore_when_closed,
};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::folder;
use crate::arguments::setting::parse_setting;
use crate::outcome::{CommandStatus, note, print, print_json};
use crate::system::signals::{self, WaitsFor};
use crate::system::standard_streams;

const ENDING: Ending = Ending {
    notes: "\
Without a word it lists the knobs: what each does, where it lives, its value, what a change needs,
which pipes it affects, and what it was tried on; and those that this machine lacks, with the
reason.",
    zero: "done",
    one: None,
    examples: &[
        "dpipe knobs",
        "dpipe knobs --only block --json",
        "dpipe knobs set prefetch.l2_stream=off -- dpipe demo  # needs root",
    ],
};

const SET: Ending = Ending {
    notes: "\
Every value is checked first. Values that are dangerous or make no sense are refused, and where the
kernel refuses one, or changes one with another, those before it are taken back. A journal in
/run/datapipes and a guard process restore the settings where this program is killed; `dpipe knobs
restore` does where both were. Shares (share.*) are for the threads of the command.",
    zero: "set, and restored unless told to stay; with a command: it succeeded",
    one: Some("the command failed, or a setting that somebody changed meanwhile was left"),
    examples: &[
        "dpipe knobs set memory.thp=always --root machine --dry-run --json",
        "dpipe knobs set memory.thp=always --root machine -- echo set now",
        "dpipe knobs set block.nvme0n1.scheduler=none --stay  # needs root, and that disk",
        "dpipe knobs set ddio.ways=0x7f0 share.l3='0=f' -- ./server  # needs root, and the hardware",
    ],
};

const RESTORE: Ending = Ending {
    notes: "\
A setting that somebody changed since is left, and one that is gone (a disk that was removed) is
told. With --forget, what the kernel refuses is given up, and a journal that cannot be read is
removed.",
    zero: "everything is restored or gone, or nothing was left over",
    one: Some("a setting was left, or was given up by --forget"),
    examples: &["dpipe knobs restore --root machine", "dpipe knobs restore --root machine --forget"],
};

/// Shows the machine's settings that decide how bytes move, and sets some while a command runs.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text(), args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show only knobs whose name begins so (may be repeated)
    #[arg(long, value_name = "PREFIX")]
    only: Vec<String>,
    /// Print JSON: knobs (name, what, affects, needs, verified, lives_at, allowed, value, absent,
    /// fixed), library, journal (the settings of a transaction that lasts or was killed)
    #[arg(long)]
    json: bool,
    /// Use the settings under this folder, a recorded or made tree, instead of the machine's
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = folder)]
    root: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Set knobs, run a command (or wait for Ctrl-C), and restore them, also after a crash
    Set(SetArgs),
    /// Restore what a transaction left whose processes were killed
    #[command(after_help = RESTORE.text())]
    Restore {
        /// Give up what cannot be restored, and remove the journal
        #[arg(long)]
        forget: bool,
        /// Use the settings under this folder instead of the machine's
        #[arg(long, value_name = "DIR", default_value = "/", value_parser = folder)]
        root: PathBuf,
    },
    /// Restore when the standard input is closed; `set` starts this
    #[command(hide = true)]
    Guard {
        /// The transaction
        id: String,
        /// Its root
        #[arg(long)]
        root: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = SET.text())]
struct SetArgs {
    /// The settings
    #[arg(value_name = "KNOB=VALUE", required = true, value_parser = parse_setting)]
    settings: Vec<(String, String)>,
    /// Show what would be set, and set nothing
    #[arg(long)]
    dry_run: bool,
    /// Leave the settings as they are at the end
    #[arg(long, conflicts_with = "command")]
    stay: bool,
    /// Print JSON: changes (name, from, to, lives_at, affects, refused), restored
    #[arg(long)]
    json: bool,
    /// Use the settings under this folder instead of the machine's
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = folder)]
    root: PathBuf,
    /// The command that runs meanwhile; shares of cache and bandwidth are for its threads
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    match &args.action {
        None => show(args),
        Some(Action::Set(args)) => set(args),
        Some(Action::Restore { root, forget }) => restore(&MachineTree::under(root), *forget),
        Some(Action::Guard { id, root }) => guard(&MachineTree::under(root), id),
    }
}

#[derive(Serialize)]
struct Shown {
    knobs: Vec<MachineKnob>,
    /// Those of the backends, which `dpipe calibrate --set` changes.
    library: Vec<datapipes::backend::Knob>,
    /// The settings that a journal names.
    journal: Option<Vec<String>>,
}

fn show(args: &Args) -> Result<CommandStatus> {
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|prefix| name.starts_with(&**prefix));
    let tree = MachineTree::under(&args.root);
    let mut knobs = list(&tree);
    knobs.retain(|knob| is_wanted(&knob.name));
    let machine = datapipes::discover();
    let mut library: Vec<_> = machine.backends().iter().flat_map(|backend| backend.knobs()).collect();
    library.retain(|knob| is_wanted(&knob.name));
    if knobs.is_empty() && library.is_empty() {
        let context = format!("no knob begins with {}", args.only.join(" or "));
        return Err(Error::new(ErrorKind::NotFound, "show", context).with_advice("`dpipe knobs` lists all"));
    }
    let shown = Shown { knobs, library, journal: journal(&tree) };
    if args.json {
        print_json(&shown)?
    } else {
        print(&text(&shown))?
    }
    Ok(CommandStatus::Good)
}

/// Returns the settings that a journal names. A journal that this process may not read is no reason
/// to show nothing.
fn journal(tree: &MachineTree) -> Option<Vec<String>> {
    journaled(tree).unwrap_or_else(|error| {
        note(&format!("whether a transaction left something is not known: {error}\n"));
        None
    })
}

fn shown_journal(names: &[String]) -> String {
    let names = names.join(", ");
    format!(
        "a transaction keeps the old values of {names}: it lasts, or was killed; then `dpipe knobs restore` restores\n"
    )
}

fn text(shown: &Shown) -> String {
    let mut out = shown.journal.as_deref().map(|names| shown_journal(names) + "\n").unwrap_or_default();
    // Writing to a String cannot fail, hence the discarded results.
    for knob in &shown.knobs {
        if let Some(value) = &knob.value {
            let _ = writeln!(out, "{} = {value}", knob.name);
            let _ = writeln!(out, "    {}", knob.what);
            let _ = match &knob.fixed {
                Some(why) => writeln!(out, "    not set by this program: {why}"),
                None => writeln!(out, "    may be: {}", knob.allowed.shown()),
            };
            let _ = writeln!(out, "    {}; needs {}; affects {}", knob.lives_at, knob.needs, knob.affects);
            let _ = writeln!(out, "    verified on {}", knob.verified);
        }
    }
    let absent: Vec<_> = shown.knobs.iter().filter(|knob| knob.value.is_none()).collect();
    if !absent.is_empty() {
        out += "\nabsent here\n";
    }
    for knob in absent {
        let why = knob.absent.as_deref().unwrap_or("unknown");
        let _ = writeln!(out, "  {}: {}\n    {why}", knob.name, knob.what);
    }
    if !shown.library.is_empty() {
        out += "\nof the library (`dpipe calibrate --set NAME=VALUE`)\n";
    }
    for knob in &shown.library {
        let _ = writeln!(out, "  {} = {} ({})", knob.name, knob.value, knob.origin);
    }
    out
}

#[derive(Serialize)]
struct Done<'a> {
    changes: &'a [KnobChange],
    restored: Option<RestoredKnobs>,
}

fn set(args: &SetArgs) -> Result<CommandStatus> {
    let tree = MachineTree::under(&args.root);
    // The command inherits the group of the thread that starts it.
    let threads = if args.command.is_empty() { vec![] } else { vec![std::process::id()] };
    if args.dry_run {
        let plan = KnobPlan::new(&tree, &args.settings, &threads, "ID")?;
        journal(&tree).iter().for_each(|names| note(&shown_journal(names)));
        return tell(args, plan.changes(), None, "would be set");
    }
    signals::catch(WaitsFor::Places);
    signals::is_usual_end();
    let guard = guard_of(&tree)?;
    let silent: &mut dyn FnMut(TransactionStep) = &mut |_| {};
    if let Some(done) = restore_left_over(&tree, silent)? {
        note(&format!("of a transaction that was killed before:\n{}", shown_restored(&done)));
    }
    let transaction = KnobTransaction::begin(&tree, &args.settings, &threads, Some(&guard), silent)?;
    let changes = transaction.changes().to_vec();
    if args.stay {
        transaction.keep(silent)?;
        return tell(args, &changes, None, "set, and stays");
    }
    let status = match args.command.split_first() {
        None if changes.is_empty() => None,
        None => {
            let count = match changes.len() {
                1 => "1 knob is".to_owned(),
                count => format!("{count} knobs are"),
            };
            note(&format!("{count} set until a signal (Ctrl-C) comes\n"));
            while !signals::arrived() {
                std::thread::sleep(LOOK_EVERY);
            }
            None
        }
        Some((program, arguments)) => Some(under(Command::new(program).args(arguments), program)?),
    };
    let restored = transaction.restore(silent)?;
    restored.left.iter().chain(&restored.gone).for_each(|what| note(&format!("{what}\n")));
    let is_left = !restored.left.is_empty();
    if args.json || args.command.is_empty() {
        tell(args, &changes, Some(restored), "was set, and is restored")?;
    }
    match status {
        Some(status) if !status.success() => {
            if let Some(signal) = status.signal() {
                note(&format!("the command died of signal {signal}\n"));
            }
            Ok(CommandStatus::Bad)
        }
        _ if is_left => Ok(CommandStatus::Bad),
        _ => Ok(CommandStatus::Good),
    }
}

/// Makes the command of a process that restores the settings under a root where this one dies.
pub(crate) fn guard_of(tree: &MachineTree) -> Result<impl Fn(&str) -> Command + use<>> {
    let program = std::env::current_exe().map_err(|e| Error::io("start the guard", e, "the path of this program"))?;
    let root = tree.root().to_owned();
    Ok(move |id: &str| {
        let mut command = Command::new(&program);
        let mut option = OsString::from("--root=");
        option.push(&root);
        // A group of its own: Ctrl-C is for the others.
        command.args(["knobs", "guard", id]).arg(option).process_group(0);
        command
    })
}

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs the command with our standard streams. A signal that comes to us is passed on, and what it
/// changed is restored after the command.
fn under(command: &mut Command, shown: &std::ffi::OsStr) -> Result<ExitStatus> {
    signals::keep_children();
    let lost = |e| Error::io("run", e, shown.to_string_lossy().into_owned());
    let mut child: Child = datapipes::threads::start_program(command).map_err(lost)?;
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait().map_err(lost)? {
            return Ok(status);
        }
        if signals::arrived() && !told {
            told = true;
            let pid = rustix::process::Pid::from_child(&child);
            // It may have ended by itself; it is waited for all the same.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn tell(args: &SetArgs, changes: &[KnobChange], restored: Option<RestoredKnobs>, what: &str) -> Result<CommandStatus> {
    if args.json {
        print_json(&Done { changes, restored })?;
        return Ok(CommandStatus::Good);
    }
    let mut out = String::new();
    for change in changes {
        let _ = writeln!(out, "{}: {} -> {} {what} ({})", change.name, change.from, change.to, change.lives_at);
        let _ = writeln!(out, "    affects {}", change.affects);
        if let Some(refused) = &change.refused {
            let _ = writeln!(out, "    will be refused: {refused}");
        }
    }
    if changes.is_empty() {
        out += "every knob has its value already\n";
    }
    print(&out)?;
    Ok(CommandStatus::Good)
}

fn restore(tree: &MachineTree, forgets: bool) -> Result<CommandStatus> {
    let silent: &mut dyn FnMut(TransactionStep) = &mut |_| {};
    // Settings come first: a group that cannot be removed must not keep them from their old values.
    let restored = if forgets { forget_left_over(tree, silent) } else { restore_left_over(tree, silent) };
    let groups = remove_stale_groups(tree);
    let done = restored?;
    let groups = groups?;
    groups.iter().try_for_each(|folder| print(&format!("{folder}: a group of threads that are gone is removed\n")))?;
    if done.is_some() || groups.is_empty() {
        print(&done.as_ref().map_or_else(|| "nothing is left over\n".to_owned(), shown_restored))?;
    }
    Ok(match done {
        Some(done) if !(done.left.is_empty() && done.forgotten.is_empty()) => CommandStatus::Bad,
        _ => CommandStatus::Good,
    })
}

fn shown_restored(done: &RestoredKnobs) -> String {
    let mut out = String::new();
    done.restored.iter().for_each(|name| _ = writeln!(out, "{name}: restored"));
    done.left.iter().chain(&done.gone).for_each(|what| _ = writeln!(out, "{what}"));
    done.forgotten.iter().for_each(|what| _ = writeln!(out, "{what}: given up"));
    if out.is_empty() {
        out += "every setting had its old value\n";
    }
    out
}

fn guard(tree: &MachineTree, id: &str) -> Result<CommandStatus> {
    signals::outlive();
    let ready = standard_streams::output()?;
    if let Some(done) = restore_when_closed(tree, id, standard_streams::input()?, ready)? {
        let all = done.restored.len();
        note(&format!("dpipe knobs: the program that set knobs died: {all} restored\n"));
        done.left.iter().chain(&done.gone).for_each(|what| note(&format!("dpipe knobs: {what}\n")));
    }
    Ok(CommandStatus::Good)
}
