//! The S3 server of the tests as a program, behind the proxy that injects faults: for tests in
//! other languages.
//!
//! ```text
//! serve FOLDER [--gateway CACHE]   buckets are folders in FOLDER; with `--gateway` it is versitygw
//! ```
//! It prints what a client's environment says (`NAME=VALUE`), and an empty line. Then it reads
//! commands, and answers each with a line:
//!
//! ```text
//! bucket NAME                        makes a bucket
//! fault COUNT METHOD PART KIND [N]   does this to the next requests whose target has PART in it
//! clear                              no more faults
//! hits                               to how many requests one was done
//! unfinished                         how many uploads are begun and not ended
//! age SECONDS                        uploads look older
//! ```
//! It ends when its input does.
#![allow(clippy::unwrap_used)]

use std::io::BufRead;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapipes_objectserver::{FaultProxy, GatewayServer, ProxyFault, ProxyRequest, S3Server};

/// A fault, and to how many requests it is still to be done.
struct Rule {
    left: u64,
    method: String,
    part: String,
    fault: ProxyFault,
}

#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    hits: u64,
}

impl Rules {
    fn choose(&mut self, request: &ProxyRequest) -> ProxyFault {
        let fits = |rule: &&mut Rule| {
            rule.left > 0 && rule.method == request.method && request.target.contains(rule.part.as_str())
        };
        let Some(rule) = self.rules.iter_mut().find(fits) else { return ProxyFault::Pass };
        rule.left -= 1;
        self.hits += 1;
        rule.fault.clone()
    }
}

enum Server {
    Ours(S3Server),
    Gateway(GatewayServer),
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let server = match words[..] {
        [folder] => Server::Ours(S3Server::start(Path::new(folder)).unwrap()),
        [folder, "--gateway", cache] => {
            let program = GatewayServer::program(Path::new(cache)).unwrap();
            Server::Gateway(GatewayServer::start(&program, Path::new(folder)).unwrap())
        }
        _ => panic!("serve FOLDER [--gateway CACHE]"),
    };
    let address = match &server {
        Server::Ours(server) => server.address(),
        Server::Gateway(server) => server.address(),
    };
    let rules = Arc::new(Mutex::new(Rules::default()));
    let chosen = rules.clone();
    let proxy = FaultProxy::start(address, move |request| chosen.lock().unwrap().choose(request)).unwrap();
    for (name, value) in S3Server::settings_at(proxy.address()) {
        println!("{name}={value}");
    }
    println!();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        println!("{}", answer(&words, &server, &mut rules.lock().unwrap()));
    }
}

fn answer(words: &[&str], server: &Server, rules: &mut Rules) -> String {
    match (words, server) {
        (["bucket", name], Server::Ours(server)) => server.make_bucket(name).unwrap(),
        (["bucket", name], Server::Gateway(server)) => server.make_bucket(name).unwrap(),
        (["fault", count, method, part, kind @ ..], _) => {
            let (left, method, part) = (count.parse().unwrap(), (*method).to_owned(), (*part).to_owned());
            rules.rules.push(Rule { left, method, part, fault: fault_of(kind) });
        }
        (["clear"], _) => *rules = Rules::default(),
        (["hits"], _) => return rules.hits.to_string(),
        (["unfinished"], Server::Ours(server)) => return server.unfinished().to_string(),
        (["age", seconds], Server::Ours(server)) => server.age_uploads(Duration::from_secs(seconds.parse().unwrap())),
        _ => return "unknown".to_owned(),
    }
    "done".to_owned()
}

fn fault_of(words: &[&str]) -> ProxyFault {
    match words {
        ["cut-request"] => ProxyFault::CutRequest,
        ["lose-answer"] => ProxyFault::LoseAnswer,
        ["cut-answer", at] => ProxyFault::CutAnswer(at.parse().unwrap()),
        ["damage-answer", at] => ProxyFault::DamageAnswer(at.parse().unwrap()),
        ["damage-request", at] => ProxyFault::DamageRequest(at.parse().unwrap()),
        ["refuse", status, code] => ProxyFault::Refuse(status.parse().unwrap(), (*code).to_owned()),
        ["swallow"] => ProxyFault::Swallow,
        ["stall", at] => ProxyFault::Stall(at.parse().unwrap()),
        ["slow", millis] => ProxyFault::Slow(Duration::from_millis(millis.parse().unwrap())),
        other => panic!("no fault: {other:?}"),
    }
}
