//! What the environment and profile files say: credentials, regions, endpoints.
//!
//! The names are those of the clouds' own tools: `AWS_*`, `GOOGLE_*`, `AZURE_*`, and those of
//! [`tool_names`]. Of AWS's profile files, the keys of a user, the region and the endpoint are
//! read. Roles, single sign-on and `credential_process` are not; a program that needs them puts
//! what `aws configure export-credentials` prints into the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use datapipes_core::{Error, ErrorKind, Result};
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use super::profiles::{self, ProfileFile, Section};
use super::secrets::Secrets;
use super::tool_names::{self, FoundSetting, GOOGLE_CREDENTIALS, NOT_TAKEN, Unclear};
use crate::address::ObjectScheme;

/// Settings by the names of environment variables.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, String>,
    /// A profile that is named, and that no file has.
    missing_profile: Option<String>,
    /// What the profile has in the place of keys, and nobody reads here.
    unread: Option<&'static str>,
    /// What the profile has that says where S3 is, and nobody reads here.
    unread_endpoint: Option<&'static str>,
    /// Why it is not known what a profile says, which might be where S3 is, or who asks.
    bad_file: Option<String>,
    /// The settings that a profile has, by their names in the environment: what they are called
    /// there.
    of_profile: BTreeMap<String, &'static str>,
    /// The settings that other names stand for, by the names that they have here.
    of_tools: BTreeMap<&'static str, &'static str>,
    /// What makes no sense, of which cloud, and what to do.
    unclear: Vec<(ObjectScheme, String, &'static str)>,
}

/// The names in a profile of what says where credentials come from, and is not read.
const UNREAD: [&str; 9] = [
    "role_arn",
    "source_profile",
    "web_identity_token_file",
    "credential_process",
    "login_session",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "sso_role_name",
];

/// Those of them that go behind keys in the file of credentials.
const BEHIND_CREDENTIALS: [&str; 2] = ["credential_process", "login_session"];

/// Whether requests to Azure state the checksum of their bytes. The name is that of S3's setting.
pub(crate) const CHECKSUM_OF_AZURE: &str = "AZURE_CHECKSUM_ALGORITHM";

/// What says at Azure who a machine or a program is.
const IDENTITIES: [AzureConfigKey; 12] = [
    AzureConfigKey::AuthorityId,
    AzureConfigKey::ClientId,
    AzureConfigKey::ClientSecret,
    AzureConfigKey::FabricClusterIdentifier,
    AzureConfigKey::FabricSessionToken,
    AzureConfigKey::FabricTokenServiceUrl,
    AzureConfigKey::FabricWorkloadHost,
    AzureConfigKey::FederatedTokenFile,
    AzureConfigKey::MsiEndpoint,
    AzureConfigKey::MsiResourceId,
    AzureConfigKey::ObjectId,
    AzureConfigKey::UseAzureCli,
];

/// Secrets that are read from files, or that the protocols' library reads from the environment by
/// itself.
const SECRET_FILES: [&str; 2] = ["AZURE_FEDERATED_TOKEN_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"];
const IDENTITY_HEADER: &str = "IDENTITY_HEADER";
/// The most bytes of a token in a file.
const MAX_TOKEN: u64 = 64 << 10;

/// The names of a token, as the cloud's own tools look for them.
const TOKENS: [&str; 2] = ["AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"];

impl Settings {
    /// Takes the settings of this process's environment, and those of AWS's profile files where
    /// the environment has no key.
    pub(crate) fn of_environment() -> Settings {
        // A value that is no text is kept, so that it is refused by its name.
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let texts = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, text(value))));
        let values = texts.filter(|(name, _)| Settings::reads(name)).collect();
        let mut settings = Settings { values, ..Settings::default() };
        let home = std::env::var_os("HOME").map(PathBuf::from);
        settings.add_profile(home.as_deref());
        settings.add_tool_names(home.as_deref());
        settings
    }

    /// Whether a variable of this name is one.
    pub(crate) fn reads(name: &str) -> bool {
        let starts = ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix));
        starts || NOT_TAKEN.contains(&name) || name == IDENTITY_HEADER
    }

    /// Takes these settings and no others.
    pub(crate) fn of(given: impl IntoIterator<Item = (String, String)>) -> Settings {
        let mut settings = Settings { values: given.into_iter().collect(), ..Settings::default() };
        settings.add_profile(None);
        settings.add_tool_names(None);
        settings
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Checks what the protocols' library takes as it is, and would end its task about: addresses,
    /// and what becomes a part of a request. Settings that it does not know are not looked at.
    ///
    /// # Errors
    /// `InvalidInput` with the name of the setting, and without its value: a user and a password
    /// may be in it.
    pub(crate) fn check(&self, scheme: ObjectScheme) -> Result<()> {
        let bad = |why: String| Error::new(ErrorKind::InvalidInput, "connect", why);
        let prefix = prefix_of(scheme);
        if scheme == ObjectScheme::S3 {
            // A file that makes no sense may have the profile.
            if let Some(why) = &self.bad_file {
                let advice = match why.starts_with("AWS_") {
                    true => "set one of them alone",
                    false => "mend it, or set AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, to /dev/null for none",
                };
                return Err(bad(why.clone()).with_advice(advice));
            }
            if let Some(profile) = &self.missing_profile {
                let why = format!("AWS_PROFILE: no profile file has `{}`", profile.escape_debug());
                return Err(bad(why).with_advice("its section is [NAME] in credentials, [profile NAME] in config"));
            }
            self.check_credentials()?;
            if let Some(unread) = self.unread_endpoint {
                let why = format!("the profile has `{unread}`, which is not read and says where S3 is");
                return Err(bad(why).with_advice("set AWS_ENDPOINT_URL_S3"));
            }
        }
        if let Some((_, why, advice)) = self.unclear.iter().find(|(of, ..)| *of == scheme) {
            return Err(bad(why.clone()).with_advice(*advice));
        }
        let forbids_plain = self.get(&format!("{prefix}ALLOW_HTTP")).is_some_and(is_no);
        for (name, value) in self.with_prefix(prefix).filter(|(name, value)| !value.is_empty() && is_taken(name)) {
            if !is_file_or_text(name) && !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                let error =
                    bad(format!("{} has a newline, or another character that no request takes", self.called(name)));
                return Err(error.with_advice("a value that was read from a file ends in a newline: leave it out"));
            }
            if is_address(name) {
                check_address(value, forbids_plain && !is_local(name)).map_err(|why| {
                    bad(format!("{} {why}", self.called(name)))
                        .with_advice("write it as http://HOST:PORT or https://HOST")
                })?;
            }
            if name == "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
                && !(value.starts_with('/') && value.parse::<http::uri::PathAndQuery>().is_ok())
            {
                return Err(bad(format!("{name} is no path of a server")).with_advice("write it as /PATH"));
            }
            check_part_of_host(name, value).map_err(|why| bad(format!("{} {why}", self.called(name))))?;
            let sums = ["crc64nvme", "sha256", "crc32c", "none"];
            if name == "AWS_CHECKSUM_ALGORITHM" && !sums.contains(&value.to_ascii_lowercase().as_str()) {
                return Err(bad(format!("{name}: `{value}` is none of {}", sums.join(", "))));
            }
        }
        let asked = self.get(CHECKSUM_OF_AZURE).filter(|_| scheme == ObjectScheme::Azure);
        if asked.is_some_and(|value| !["crc64nvme", "none"].contains(&value.to_ascii_lowercase().as_str())) {
            return Err(bad(format!("{CHECKSUM_OF_AZURE} is neither crc64nvme nor none")));
        }
        Ok(())
    }

    /// Refuses to ask the machine for its own credentials where other ones were meant, or none.
    fn check_credentials(&self) -> Result<()> {
        const SOURCES: [&str; 4] = [
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ];
        let is_unsigned = self.get("AWS_SKIP_SIGNATURE").is_some_and(|value| !is_no(value));
        if is_unsigned {
            return Ok(());
        }
        let refused = |why: String| Error::new(ErrorKind::PermissionDenied, "connect", why);
        if let Some(unread) = self.unread {
            return Err(refused(format!("the profile has `{unread}`, which is not read"))
                .with_advice("put what `aws configure export-credentials --format env` prints into the environment"));
        }
        if self.get("AWS_ACCESS_KEY_ID").is_some() && self.get("AWS_SECRET_ACCESS_KEY").is_none() {
            let why = format!("{} is given, and no secret key", self.called("AWS_ACCESS_KEY_ID"));
            return Err(refused(why).with_advice("a key and its secret come from one source: give both there"));
        }
        let is_role = |name: &str| self.get(name).is_some();
        if is_role("AWS_WEB_IDENTITY_TOKEN_FILE") && !is_role("AWS_ROLE_ARN") && !is_role("AWS_ACCESS_KEY_ID") {
            let why = "AWS_WEB_IDENTITY_TOKEN_FILE is given, and no AWS_ROLE_ARN".to_owned();
            return Err(refused(why).with_advice("set the role that the token is for"));
        }
        if SOURCES.iter().any(|name| self.get(name).is_some()) {
            return Ok(());
        }
        if self.get("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            let why = "there are no credentials: neither variables nor a profile have them, and \
                       AWS_EC2_METADATA_DISABLED says not to ask the machine";
            return Err(refused(why.to_owned()).with_advice(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
            ));
        }
        Ok(())
    }

    /// What a setting is called where it was found.
    fn called(&self, name: &str) -> String {
        match (self.of_profile.get(name), self.of_tools.get(name)) {
            (Some(there), _) => format!("`{there}` of the profile"),
            (None, Some(there)) => (*there).to_owned(),
            (None, None) => name.to_owned(),
        }
    }

    /// The settings whose names begin so. One without a value is not set.
    pub(crate) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.values
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The values that no message may contain.
    pub(crate) fn secrets(&self) -> Secrets {
        let mut words: Vec<String> = Vec::new();
        for (_, value) in self.values.iter().filter(|(name, _)| is_secret(name)) {
            // Of a signature in a query, the value alone is one, too.
            words.extend(value.split(['&', '?']).filter_map(|pair| pair.strip_prefix("sig=")).map(str::to_owned));
            words.push(value.clone());
        }
        words.extend(SECRET_FILES.into_iter().filter_map(|name| token_of(Path::new(self.get(name)?))));
        Secrets::new(words)
    }

    /// The path of a profile file: what its variable says, or its usual place.
    fn profile_file(&self, name: &str, usual: &str, home: Option<&Path>) -> Option<PathBuf> {
        match self.get(name) {
            Some(path) => Some(expanded(path, home)),
            None => home.map(|home| home.join(".aws").join(usual)),
        }
    }

    /// Adds what the profile files say and the settings do not.
    fn add_profile(&mut self, home: Option<&Path>) {
        let credentials = self.profile_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", home);
        let config = self.profile_file("AWS_CONFIG_FILE", "config", home);
        let mut bad_file = None;
        let named = [self.get("AWS_PROFILE"), self.get("AWS_DEFAULT_PROFILE")];
        if let [Some(one), Some(other)] = named
            && one != other
        {
            // Tools differ in which of them counts.
            bad_file = Some("AWS_PROFILE and AWS_DEFAULT_PROFILE name two profiles".to_owned());
        }
        let named = named.into_iter().flatten().next().map(str::to_owned);
        let profile = named.as_deref().unwrap_or("default");
        let mut section = |file: Option<PathBuf>, kind| {
            profiles::profile(&file?, kind, profile).unwrap_or_else(|why| {
                bad_file.get_or_insert(format!("a profile file: {why}"));
                None
            })
        };
        let of_config = section(config, ProfileFile::Config);
        let of_credentials = section(credentials, ProfileFile::Credentials);
        // Without it, another identity would act: that of the machine, for example.
        let is_missing = of_config.is_none() && of_credentials.is_none();
        let of_config = of_config.unwrap_or_default();
        let of_credentials = of_credentials.unwrap_or_default();
        // A key, its secret and its token come from one source. The protocols' library knows a
        // third name of the token, which the cloud's own tools do not.
        self.values.remove("AWS_TOKEN");
        if self.get("AWS_ACCESS_KEY_ID").is_some() {
            if let Some(token) = TOKENS.into_iter().find_map(|name| self.get(name)).map(str::to_owned) {
                self.values.insert("AWS_SESSION_TOKEN".to_owned(), token);
            }
        } else {
            // A role by a token of the web goes before keys of a profile.
            let is_web = self.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_some();
            let with_key = |section: &&Section| section.get("aws_access_key_id").is_some_and(|key| !key.is_empty());
            let source = [&of_credentials, &of_config].into_iter().find(with_key);
            if let Some(source) = source.filter(|_| !is_web) {
                self.values.remove("AWS_SECRET_ACCESS_KEY");
                self.values.remove("AWS_SESSION_TOKEN");
                self.take("aws_access_key_id", source, "AWS_ACCESS_KEY_ID");
                self.take("aws_secret_access_key", source, "AWS_SECRET_ACCESS_KEY");
                self.take("aws_session_token", source, "AWS_SESSION_TOKEN");
                self.take("aws_security_token", source, "AWS_SESSION_TOKEN");
            }
            // What says where credentials come from goes before keys beside it.
            let is_shared = of_credentials.contains_key("aws_access_key_id");
            let goes_before = |name: &&str| !(is_shared && BEHIND_CREDENTIALS.contains(name));
            let is_there = |name: &&str| of_config.contains_key(*name) || of_credentials.contains_key(*name);
            self.unread = UNREAD.into_iter().filter(goes_before).find(is_there);
        }
        let mut found = of_config;
        found.extend(of_credentials);
        self.missing_profile = named.filter(|name| is_missing && name != "default");
        if self.get("AWS_REGION").is_none() && self.get("AWS_DEFAULT_REGION").is_none() {
            self.take("region", &found, "AWS_REGION");
        }
        let endpoints = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"];
        // Where the environment says all that a file could say, what the file says does not count.
        let is_told = self.get("AWS_ACCESS_KEY_ID").is_some_and(|_| !self.of_profile.contains_key("AWS_ACCESS_KEY_ID"))
            && endpoints.iter().any(|name| self.get(name).is_some());
        self.bad_file = bad_file.filter(|_| !is_told);
        let is_true = |value: Option<&str>| value.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let of_profile = |name: &str| found.get(name).map(String::as_str);
        let ignores = self.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
        if is_true(ignores.or(of_profile("ignore_configured_endpoint_urls"))) {
            self.values.retain(|name, _| !endpoints.contains(&name.as_str()));
        } else if endpoints.iter().all(|name| self.get(name).is_none()) {
            self.take("endpoint_url", &found, "AWS_ENDPOINT_URL");
            // What it says of S3 goes before `endpoint_url`.
            self.unread_endpoint = found.contains_key("services").then_some("services");
        }
        if endpoints.iter().all(|name| self.get(name).is_none()) {
            let hosts = ["use_fips_endpoint", "use_dualstack_endpoint"];
            let unread = hosts.into_iter().find(|name| is_true(of_profile(name)));
            self.unread_endpoint = self.unread_endpoint.or(unread);
        }
    }

    /// Adds what the tools of Google and Azure have by other names.
    fn add_tool_names(&mut self, home: Option<&Path>) {
        let azure = tool_names::of_azure(|name| self.get(name));
        let google = tool_names::of_google(|name| self.get(name), home);
        let is_told = self.get("AZURE_STORAGE_CONNECTION_STRING").is_some();
        let is_google_emulator = self.get("STORAGE_EMULATOR_HOST").is_some();
        self.values.retain(|name, _| !NOT_TAKEN.contains(&name.as_str()));
        if is_google_emulator {
            self.values.retain(|name, _| !GOOGLE_CREDENTIALS.contains(&name.as_str()));
        }
        // The protocols' library takes an empty part of a path for one.
        for name in ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL"] {
            if let Some(address) = self.values.get_mut(name) {
                address.truncate(address.trim_end_matches('/').len());
            }
        }
        self.add_found(ObjectScheme::Azure, azure, |name| name.parse::<AzureConfigKey>().ok());
        self.add_found(ObjectScheme::Gcs, google, |name| name.parse::<GoogleConfigKey>().ok());
        self.choose_azure_credentials(is_told);
    }

    /// Adds settings. Names of one setting that have different values are an error: tools differ in
    /// which one counts.
    fn add_found<K: Eq>(
        &mut self,
        scheme: ObjectScheme,
        found: Result<Vec<FoundSetting>, Unclear>,
        key: impl Fn(&str) -> Option<K>,
    ) {
        let key = |name: &str| key(&name.to_ascii_lowercase());
        let found = found.unwrap_or_else(|Unclear { why, advice }| {
            self.unclear.push((scheme, why, advice));
            Vec::new()
        });
        let mut differ = |one: &str, other: String| {
            self.unclear.push((scheme, format!("{one} and {other} say different things"), "set one of them alone"));
        };
        for FoundSetting { name, value, called } in found {
            if let Some(its) = self.values.get(name).filter(|its| !its.is_empty()) {
                if *its != value {
                    let other = self.of_tools.get(name).copied().unwrap_or(name);
                    differ(called, other.to_owned());
                }
                continue;
            }
            self.values.insert(name.to_owned(), value);
            self.of_tools.insert(name, called);
        }
        let called = |name: &str| self.of_tools.get(name).copied().unwrap_or(name).to_owned();
        let named: Vec<(&String, &String)> = self
            .values
            .iter()
            .filter(|(name, value)| name.starts_with(prefix_of(scheme)) && !value.is_empty() && key(name).is_some())
            .collect();
        for (at, (name, value)) in named.iter().enumerate() {
            let same = named.iter().take(at).find(|(other, its)| key(other) == key(name) && its != value);
            if let Some((other, _)) = same {
                differ(&called(name), called(other));
            }
        }
    }

    /// Of several credentials of Azure, those of the storage go before those of a machine or a
    /// program, which may be set by whoever runs it. `is_told` says that there is a connection
    /// string.
    fn choose_azure_credentials(&mut self, is_told: bool) {
        use AzureConfigKey::{AccessKey, CredentialType, SasKey, SkipSignature, Token};
        let key = |name: &str| name.to_ascii_lowercase().parse::<AzureConfigKey>().ok();
        let names = |wanted: &[AzureConfigKey]| -> Vec<String> {
            let given = self.with_prefix("AZURE_").map(|(name, _)| name);
            given.filter(|name| key(name).is_some_and(|key| wanted.contains(&key))).map(str::to_owned).collect()
        };
        if !names(&[CredentialType, SkipSignature]).is_empty() {
            return;
        }
        let kinds = [names(&[AccessKey]), names(&[SasKey]), names(&[Token])];
        let mut given = kinds.iter().filter_map(|kind| kind.first());
        let (Some(first), second) = (given.next(), given.next()) else { return };
        if let Some(second) = second {
            let why = format!("{} and {} are both given", self.called(first), self.called(second));
            let advice =
                if is_told { "leave out what is beside the connection string" } else { "set one of them alone" };
            self.unclear.push((ObjectScheme::Azure, why, advice));
        }
        self.values.retain(|name, _| !key(name).is_some_and(|key| IDENTITIES.contains(&key)));
    }

    fn take(&mut self, from: &'static str, found: &Section, name: &str) {
        if let Some(value) = found.get(from) {
            self.values.insert(name.to_owned(), value.clone());
            self.of_profile.insert(name.to_owned(), from);
        }
    }
}

/// How the names of a cloud's settings begin.
fn prefix_of(scheme: ObjectScheme) -> &'static str {
    match scheme {
        ObjectScheme::Gcs => "GOOGLE_",
        ObjectScheme::Azure => "AZURE_",
        ObjectScheme::S3 | ObjectScheme::Http => "AWS_",
    }
}

/// Whether the protocols' library takes a setting of this name. Proxies are not used.
fn is_taken(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_known = lower.parse::<AmazonS3ConfigKey>().is_ok()
        || lower.parse::<GoogleConfigKey>().is_ok()
        || lower.parse::<AzureConfigKey>().is_ok();
    is_known && !name.contains("_PROXY_")
}

/// Whether a setting is the path of a file, or a text of several lines.
fn is_file_or_text(name: &str) -> bool {
    name.ends_with("_FILE")
        || name.starts_with("GOOGLE_SERVICE_ACCOUNT")
        || matches!(name, "GOOGLE_APPLICATION_CREDENTIALS" | "AWS_CA_BUNDLE")
}

/// Whether a setting is the address of a server.
fn is_address(name: &str) -> bool {
    let is_one = ["ENDPOINT", "BASE_URL", "FULL_URI", "AUTHORITY_HOST", "SERVICE_URL"];
    is_one.iter().any(|word| name.contains(word)) && !name.contains("_USE_")
}

/// Whether a server is one of the machine itself, which gives credentials and knows no TLS.
fn is_local(name: &str) -> bool {
    ["METADATA", "CONTAINER", "MSI", "IDENTITY"].iter().any(|word| name.contains(word))
}

/// Whether a value says no, as the protocols' library reads it.
fn is_no(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "0" | "false" | "off" | "no" | "n")
}

/// A path with `~` and variables, as the cloud's own tools take it. What stands for nothing stays.
fn expanded(path: &str, home: Option<&Path>) -> PathBuf {
    let mut made = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('$') {
        made.push_str(before);
        let is_of_name = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
        let (name, behind) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some(found) => found,
            None => after.split_at(after.chars().take_while(is_of_name).count()),
        };
        match std::env::var(name) {
            Ok(value) if !name.is_empty() => {
                made.push_str(&value);
                rest = behind;
            }
            _ => {
                made.push('$');
                rest = after;
            }
        }
    }
    made.push_str(rest);
    match (made.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.to_path_buf(),
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(made),
    }
}

/// Whether it is a name of a host, or a part of one, by its length and its dots.
fn has_labels(host: &str) -> bool {
    let is_label =
        |label: &str| !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-');
    host.strip_suffix('.').unwrap_or(host).split('.').all(is_label)
}

fn check_address(value: &str, needs_tls: bool) -> std::result::Result<(), &'static str> {
    let uri = value.parse::<http::Uri>().map_err(|_| "is no address of a server")?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("is no address of a server")?;
    let is_host = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    let is_name = host.starts_with('[') || has_labels(host);
    if !matches!(uri.scheme_str(), Some("http" | "https")) || !is_host || !is_name {
        return Err("is no address of a server");
    }
    let text = uri.authority().map_or("", |authority| authority.as_str());
    let port = text.get(host.len()..).and_then(|rest| rest.strip_prefix(':'));
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_port = |port: &str| is_number(port) && uri.port_u16().is_some_and(|port| port > 0);
    if text.len() > host.len() && !text.contains('@') && !port.is_some_and(is_port) {
        return Err("has no port of a server behind the colon");
    }
    if text.contains('@') {
        return Err("has a user or a password, which are not sent");
    }
    if uri.query().is_some() || value.contains('#') {
        return Err("has a query or a fragment, which no endpoint has");
    }
    // The protocols' library takes addresses as a browser does, and ends its task at others.
    if value.parse::<url::Url>().is_err() {
        return Err("is no address of a server");
    }
    if needs_tls && uri.scheme_str() == Some("http") {
        return Err("has no TLS, which the setting ALLOW_HTTP asks for");
    }
    Ok(())
}

/// Checks what the protocols' library makes a host of: a region, and Azure's name of an account.
fn check_part_of_host(name: &str, value: &str) -> std::result::Result<(), &'static str> {
    let (what, domain) = match name {
        "AWS_REGION" | "AWS_DEFAULT_REGION" => ("is no region", "amazonaws.com"),
        "AZURE_STORAGE_ACCOUNT_NAME" => ("is no name of an account", "blob.core.windows.net"),
        _ => return Ok(()),
    };
    let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let is_host = || format!("https://s3.{value}.{domain}/").parse::<url::Url>().is_ok();
    if is_plain && has_labels(value) && is_host() { Ok(()) } else { Err(what) }
}

/// The token in a file. What is no file of a token's length is left alone: a pipe gives its bytes
/// once, or never.
fn token_of(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_TOKEN {
        return None;
    }
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Whether the value of a setting of this name is a secret, or goes with one.
fn is_secret(name: &str) -> bool {
    ["SECRET", "KEY", "TOKEN", "PASSWORD", "SAS", IDENTITY_HEADER].iter().any(|word| name.contains(word))
        && !name.ends_with("_FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        use ErrorKind::{InvalidInput, PermissionDenied};
        let check = |name: &str, value: &str| {
            let scheme = match name.split_once('_').unwrap().0 {
                "AZURE" => ObjectScheme::Azure,
                "GOOGLE" => ObjectScheme::Gcs,
                _ => ObjectScheme::S3,
            };
            Settings::of([(name.to_owned(), value.to_owned())]).check(scheme)
        };
        for (name, value) in [
            ("AWS_ENDPOINT_URL", "nonsense"),
            ("AWS_ENDPOINT_URL", "localhost:9000"),
            ("AWS_ENDPOINT_URL", "http://user:pass-word@h"),
            ("AWS_ENDPOINT_URL", "http://%zz/"),
            ("AWS_ENDPOINT_URL", " http://h"),
            ("AWS_ENDPOINT_URL_S3", "ftp://h"),
            ("AWS_ENDPOINT_URL", "http://h:99999"),
            ("AWS_ENDPOINT_URL", "http://h:+80"),
            ("AWS_ENDPOINT_URL", "http://h:80?x=1"),
            ("AWS_ENDPOINT_URL", "http://h:80/#f"),
            ("AWS_ENDPOINT_URL", "http://[::1]:"),
            ("AWS_ENDPOINT_URL", "http://h:0"),
            ("AWS_ENDPOINT_URL", "http://[zz]:80"),
            ("AWS_ENDPOINT_URL", "http://[]:80"),
            ("AWS_ENDPOINT_URL_S3", "http://[1:2]:80"),
            ("AWS_ENDPOINT_URL", "http://256.256.256.256:80"),
            ("AWS_ENDPOINT_URL", "http://1.2.3.999"),
            ("AWS_ENDPOINT_URL", "http://999999999999"),
            ("AWS_ENDPOINT_URL", "http://09.1.1.1:1"),
            ("AWS_ENDPOINT_URL", "http://xn--a:80"),
            ("AWS_REGION", "a b"),
            ("AWS_REGION", "[zz]"),
            ("AWS_REGION", "xn--a"),
            ("AWS_DEFAULT_REGION", "a%zz"),
            ("AWS_REGION", "a.b:99999"),
            ("AWS_REGION", ".."),
            ("AWS_REGION", "a..b"),
            ("AWS_REGION", "."),
            ("AWS_REGION", "a-region-of-a-name-that-is-longer-than-a-label-of-a-host-may-be-at-all"),
            ("AWS_ENDPOINT_URL", "http://host..name:9"),
            ("AWS_ENDPOINT_URL", "http://-:9"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "a b"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_METADATA_ENDPOINT", "nonsense"),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "nonsense"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/no sense"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "sense"),
            ("AWS_SESSION_TOKEN", "token\n"),
            ("AWS_REGION", "us-east-1\n"),
            ("AWS_DEFAULT_REGION", "us\u{7f}east"),
            ("AWS_DEFAULT_CONTENT_TYPE", "a\nb"),
            ("AWS_REGION", "\u{fffd}"),
            ("AWS_CHECKSUM_ALGORITHM", "md5"),
            ("AZURE_STORAGE_TOKEN", "t\n"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "a\nb"),
            ("AZURE_AUTHORITY_HOST", "nonsense"),
            ("GOOGLE_BEARER_TOKEN", "t\n"),
        ] {
            let error = check(name, value).expect_err(name);
            let kind = if name == "AWS_EC2_METADATA_DISABLED" { PermissionDenied } else { InvalidInput };
            assert!(error.kind() == kind && error.to_string().contains(name), "{error}");
            assert!(!error.to_string().contains("pass-word"), "{error}");
        }
        for (name, value) in [
            ("AWS_ENDPOINT_URL", "http://h:1"),
            ("AWS_ENDPOINT_URL", "http://[::1]:9000/path"),
            ("AWS_CHECKSUM_ALGORITHM", "SHA256"),
            ("AWS_ENDPOINT_URL", ""),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials?id=1"),
            ("AWS_CA_BUNDLE", "/\u{e9}/certificates"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "{\n}"),
            // Nobody reads it.
            ("AWS_PAGER", "a\nb"),
        ] {
            check(name, value).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let plain = |allow: &str, name: &str| {
            Settings::of([("AWS_ALLOW_HTTP", allow), (name, "http://h")].map(|(n, v)| (n.to_owned(), v.to_owned())))
                .check(ObjectScheme::S3)
        };
        assert!(plain("false", "AWS_ENDPOINT_URL").unwrap_err().to_string().contains("has no TLS"));
        assert!(plain("true", "AWS_ENDPOINT_URL").is_ok() && plain("false", "AWS_METADATA_ENDPOINT").is_ok());
    }

    #[test]
    fn other_names_of_a_setting_say_the_same_or_are_refused() {
        let read = ["AWS_PROFILE", "AZURE_X", "STORAGE_EMULATOR_HOST", "AZURITE_BLOB_STORAGE_URL", "CLOUDSDK_CONFIG"];
        assert!(read.into_iter().all(Settings::reads) && !Settings::reads("HOME"));
        let of = |pairs: &[(&str, &str)]| {
            Settings::of(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        let text = "AccountName=me;AccountKey=secret+key==;BlobEndpoint=https://me.example/";
        let settings = of(&[
            ("AZURE_STORAGE_CONNECTION_STRING", text),
            ("AZURE_STORAGE_ACCOUNT", "me"),
            ("AZURE_STORAGE_ACCESS_KEY", "secret+key=="),
            ("AZURE_ENDPOINT", "https://me.example//"),
        ]);
        settings.check(ObjectScheme::Azure).unwrap();
        assert_eq!(settings.get("AZURE_STORAGE_ACCOUNT_NAME"), Some("me"));
        assert_eq!(settings.get("AZURE_ENDPOINT"), Some("https://me.example"));
        assert_eq!(settings.get("AZURE_STORAGE_CONNECTION_STRING"), None);
        assert_eq!(settings.secrets().scrub("x secret+key=="), "x ***");
        for (pairs, words) in [
            (
                &[("AZURE_STORAGE_CONNECTION_STRING", text), ("AZURE_STORAGE_ACCOUNT", "you")][..],
                "say different things",
            ),
            (&[("AZURE_STORAGE_CONNECTION_STRING", text), ("AZURE_ENDPOINT", "https://you")], "BlobEndpoint of"),
            (&[("AZURE_STORAGE_CONNECTION_STRING", "secret")], "is no list"),
            (&[("AZURE_STORAGE_ACCOUNT", "a b")], "AZURE_STORAGE_ACCOUNT is no name"),
            (&[("AZURE_CHECKSUM_ALGORITHM", "md5")], "neither crc64nvme nor none"),
            (
                &[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_SERVICE_ENDPOINT", "x")],
                "AZURE_STORAGE_SERVICE_ENDPOINT",
            ),
        ] {
            let error = of(pairs).check(ObjectScheme::Azure).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("secret"), "{pairs:?}: {error}");
            of(pairs).check(ObjectScheme::Gcs).unwrap();
        }
        // Aliases that nobody translates, and credentials of several kinds.
        for (pairs, words) in [
            (&[("AZURE_ENDPOINT", "https://a"), ("AZURE_STORAGE_ENDPOINT", "https://b")][..], "say different things"),
            (&[("AZURE_STORAGE_SAS_TOKEN", "sig=a"), ("AZURE_STORAGE_SAS_KEY", "sig=b")], "say different things"),
            (&[("AZURE_STORAGE_CONNECTION_STRING", text), ("AZURE_STORAGE_SAS_TOKEN", "sig=b")], "both given"),
            (&[("AZURE_STORAGE_KEY", "a2V5"), ("AZURE_STORAGE_TOKEN", "token")], "both given"),
        ] {
            let error = of(pairs).check(ObjectScheme::Azure).unwrap_err().to_string();
            assert!(error.contains(words), "{pairs:?}: {error}");
        }
        let error = of(&[("GOOGLE_SERVICE_ACCOUNT", "/a"), ("GOOGLE_SERVICE_ACCOUNT_PATH", "/b")]);
        assert!(error.check(ObjectScheme::Gcs).is_err());
        // What a pod has by itself does not count beside what was set for the storage.
        let pod = [("AZURE_CLIENT_ID", "c"), ("AZURE_TENANT_ID", "t"), ("AZURE_FEDERATED_TOKEN_FILE", "/f")];
        let settings = of(&[&pod[..], &[("AZURE_STORAGE_CONNECTION_STRING", text)]].concat());
        settings.check(ObjectScheme::Azure).unwrap();
        assert!(pod.iter().all(|(name, _)| settings.get(name).is_none()));
        assert!(of(&pod).get("AZURE_CLIENT_ID").is_some());
        // The signature alone is a secret, too.
        let signed = of(&[("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sp=rwl&sig=a%2Bsecret%3D")]);
        assert_eq!(signed.secrets().scrub("sig a+secret= sp rwl"), "sig *** sp rwl");
        // So is the token in a file; a pipe is not read.
        let folder = datapipes_testkit::TempFolder::new().unwrap();
        let (file, pipe) = (folder.path("token"), folder.path("pipe"));
        std::fs::write(&file, "a-token-of-a-pod\n").unwrap();
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let token = of(&[("AZURE_FEDERATED_TOKEN_FILE", file.to_str().unwrap())]);
        assert_eq!(token.secrets().scrub("x a-token-of-a-pod"), "x ***");
        for odd in [pipe.to_str().unwrap(), "/dev/zero", "/"] {
            assert_eq!(of(&[("AWS_WEB_IDENTITY_TOKEN_FILE", odd)]).secrets().scrub("x"), "x");
        }
        let emulator = ("STORAGE_EMULATOR_HOST", "h:1");
        let settings = of(&[emulator, ("GOOGLE_APPLICATION_CREDENTIALS", "/file"), ("GOOGLE_BEARER_TOKEN", "token")]);
        settings.check(ObjectScheme::Gcs).unwrap();
        assert_eq!(settings.get("GOOGLE_BASE_URL"), Some("http://h:1"));
        assert!(settings.get("GOOGLE_APPLICATION_CREDENTIALS").or(settings.get("GOOGLE_BEARER_TOKEN")).is_none());
        for (host, other, words) in
            [("h:1", "http://h:2", "say different things"), ("h:x", "", "STORAGE_EMULATOR_HOST has")]
        {
            let settings = of(&[("STORAGE_EMULATOR_HOST", host), ("GOOGLE_BASE_URL", other)]);
            let error = settings.check(ObjectScheme::Gcs).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn profiles_fill_what_the_environment_leaves_open() {
        let folder = datapipes_testkit::TempFolder::beside_the_program().unwrap();
        let path = |name: &str| folder.path(name).display().to_string();
        let credentials = "[default] ; a comment\naws_access_key_id = A\naws_secret_access_key=secret-of-default\n\
                           [other]\naws_access_key_id=B\naws_secret_access_key = secret-of-other\ns3 =\n  nested = 1\n";
        std::fs::write(path("credentials"), credentials).unwrap();
        std::fs::write(
            path("config"),
            "[profile other]\nregion = eu-west-1\nendpoint_url=http://h:1\n[default] # a comment\n",
        )
        .unwrap();
        let given = |more: &[(&str, &str)]| {
            let files = [
                ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), path("credentials")),
                ("AWS_CONFIG_FILE".to_owned(), path("config")),
            ];
            Settings::of(files.into_iter().chain(more.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))))
        };
        assert_eq!(given(&[]).get("AWS_ACCESS_KEY_ID"), Some("A"));
        assert_eq!(given(&[]).get("AWS_REGION"), None);
        let other = given(&[("AWS_PROFILE", "other")]);
        assert_eq!(other.get("AWS_SECRET_ACCESS_KEY"), Some("secret-of-other"));
        assert_eq!((other.get("AWS_REGION"), other.get("AWS_ENDPOINT_URL")), (Some("eu-west-1"), Some("http://h:1")));
        let own = given(&[("AWS_ACCESS_KEY_ID", "C"), ("AWS_REGION", "here")]);
        assert_eq!((own.get("AWS_SECRET_ACCESS_KEY"), own.get("AWS_REGION")), (None, Some("here")));
        assert_eq!(other.secrets().scrub("secret-of-other!"), "***!");
        assert!(other.check(ObjectScheme::S3).is_ok() && given(&[]).check(ObjectScheme::S3).is_ok());
        std::fs::write(path("config"), "[profile role]\nrole_arn = arn:1\n[profile local]\nservices = here\n").unwrap();
        let refused = |more: &[(&str, &str)]| given(more).check(ObjectScheme::S3).unwrap_err().to_string();
        assert!(refused(&[("AWS_PROFILE", "role")]).contains("`role_arn`"));
        let own = [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "S")];
        let keys = [&own[..], &[("AWS_PROFILE", "local")]].concat();
        assert!(refused(&keys).contains("`services`"));
        let local = given(&[&keys[..], &[("AWS_ENDPOINT_URL_S3", "http://h")]].concat());
        assert!(local.check(ObjectScheme::S3).is_ok());
        let ignoring = [("AWS_ENDPOINT_URL", "http://h"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(given(&ignoring).get("AWS_ENDPOINT_URL"), None);
        assert_eq!(given(&[("AWS_REGION", "")]).with_prefix("AWS_REGION").count(), 0);
        // Bytes would go to another server than the one that was meant.
        std::fs::write(path("config"), "[default\nendpoint_url = http://private:1\n").unwrap();
        assert!(refused(&[]).contains("line 1"));
        assert!(refused(&own).contains("line 1"));
        assert!(refused(&[("AWS_PROFILE", "typo")]).contains("line 1"));
        let told = given(&[&own[..], &[("AWS_ENDPOINT_URL", "http://h")]].concat());
        assert!(told.check(ObjectScheme::S3).is_ok() && given(&[]).check(ObjectScheme::Gcs).is_ok());
        std::fs::write(path("config"), "[default]\nendpoint_url = http://h:1 # a note\n").unwrap();
        assert!(refused(&[]).contains("`endpoint_url` of the profile"));
        // Variables without a key are of another source; a key without a secret is none.
        let token = given(&[("AWS_SESSION_TOKEN", "stale"), ("AWS_SECRET_ACCESS_KEY", "stale")]);
        assert_eq!(
            (token.get("AWS_SESSION_TOKEN"), token.get("AWS_SECRET_ACCESS_KEY")),
            (None, Some("secret-of-default"))
        );
        std::fs::write(path("config"), "[default]\naws_secret_access_key = S\naws_session_token = T\n").unwrap();
        assert_eq!(given(&[]).get("AWS_SESSION_TOKEN"), None);
        std::fs::write(path("credentials"), "[default]\naws_access_key_id = A\n").unwrap();
        assert!(refused(&[]).contains("no secret key"));
        // The other name of a token, which goes before the usual one, and a third that nobody else
        // knows.
        let with_token = format!("{credentials}[t]\naws_access_key_id = A\naws_secret_access_key = S\n");
        let token_of = |tokens: &str, more: &[(&str, &str)]| {
            std::fs::write(path("credentials"), format!("{with_token}{tokens}")).unwrap();
            let token = given(&[&[("AWS_PROFILE", "t")], more].concat()).get("AWS_SESSION_TOKEN").map(str::to_owned);
            token.unwrap_or_default()
        };
        assert_eq!(token_of("aws_session_token = T\naws_security_token = U\n", &[]), "U");
        assert_eq!(token_of("aws_session_token = T\n", &[("AWS_SECURITY_TOKEN", "V")]), "T");
        assert_eq!(token_of("", &[&own[..], &[("AWS_SECURITY_TOKEN", "V"), ("AWS_SESSION_TOKEN", "W")]].concat()), "V");
        assert_eq!(given(&[("AWS_TOKEN", "X")]).get("AWS_TOKEN"), None);
        // A role by a token of the web goes before keys of a profile, and needs its name.
        let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn:1")];
        assert_eq!(given(&web).get("AWS_ACCESS_KEY_ID"), None);
        assert!(given(&web).check(ObjectScheme::S3).is_ok());
        assert!(refused(&web[..1]).contains("no AWS_ROLE_ARN"));
        // What goes before keys, or before `endpoint_url`.
        std::fs::write(path("credentials"), credentials).unwrap();
        for (config, word) in [
            ("role_arn = arn:1", "`role_arn`"),
            ("sso_session = s", "`sso_session`"),
            ("sso_role_name = r", "`sso_role_name`"),
            ("web_identity_token_file = /t", "`web_identity_token_file`"),
            ("endpoint_url = http://h\nservices = s", "`services`"),
            ("use_fips_endpoint = true", "`use_fips_endpoint`"),
        ] {
            std::fs::write(path("config"), format!("[default]\n{config}\n")).unwrap();
            assert!(refused(&[]).contains(word), "{config}");
        }
        for config in ["credential_process = p", "login_session = l", "use_fips_endpoint = false"] {
            std::fs::write(path("config"), format!("[default]\n{config}\n")).unwrap();
            given(&[]).check(ObjectScheme::S3).unwrap_or_else(|e| panic!("{config}: {e}"));
        }
        let ignores = "[default]\nendpoint_url = http://h\nignore_configured_endpoint_urls = true\n";
        std::fs::write(path("config"), ignores).unwrap();
        assert_eq!(given(&[]).get("AWS_ENDPOINT_URL"), None);
        assert!(refused(&[("AWS_PROFILE", "other"), ("AWS_DEFAULT_PROFILE", "default")]).contains("two profiles"));
        std::fs::write(path("config"), "[default]\n").unwrap();
        let missing = given(&[("AWS_PROFILE", "typo")]);
        assert!(missing.check(ObjectScheme::S3).unwrap_err().to_string().contains("typo"));
        assert!(missing.check(ObjectScheme::Gcs).is_ok());
    }

    #[test]
    fn paths_of_profile_files_are_those_of_a_shell() {
        let home = std::env::var("HOME").unwrap_or_default();
        let at = |path: &str| expanded(path, Some(Path::new("/h"))).display().to_string();
        for (path, expected) in [
            ("~", "/h".to_owned()),
            ("~/a", "/h/a".to_owned()),
            ("/a/~", "/a/~".to_owned()),
            ("~somebody/a", "~somebody/a".to_owned()),
            ("$HOME/a", format!("{home}/a")),
            ("/x${HOME}y", format!("/x{home}y")),
            ("/$NO_SUCH_NAME/$", "/$NO_SUCH_NAME/$".to_owned()),
            ("${NO_SUCH_NAME}", "${NO_SUCH_NAME}".to_owned()),
        ] {
            assert_eq!(at(path), expected, "{path}");
        }
    }
}
