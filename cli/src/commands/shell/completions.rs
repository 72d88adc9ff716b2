//! `dpipe completions`: a script that completes the command line in a shell.

use clap_complete::Shell;
use datapipes::Result;

use crate::arguments::ending::Ending;
use crate::outcome::{CommandStatus, print_as_it_is};

const ENDING: Ending = Ending {
    notes: "\
bash: source it, or save it as ~/.local/share/bash-completion/completions/dpipe. zsh: save it as
_dpipe in a folder of $fpath. fish: save it as ~/.config/fish/completions/dpipe.fish.",
    zero: "the script is printed",
    one: None,
    examples: &[
        "dpipe completions bash > dpipe.bash",
        "dpipe completions zsh > _dpipe",
        "dpipe completions fish > dpipe.fish",
    ],
};

/// Prints a script that completes commands, options and files in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for a definition of the command line.
pub(crate) fn run(args: &Args, mut definition: clap::Command) -> Result<CommandStatus> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, "dpipe", &mut script);
    print_as_it_is(&String::from_utf8_lossy(&script))?;
    Ok(CommandStatus::Good)
}
