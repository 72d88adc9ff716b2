//! What the tools and libraries of Google and Azure call their settings, by the names that the
//! protocols' library takes.
//!
//! | name | stands for |
//! |---|---|
//! | `AZURE_STORAGE_ACCOUNT`, `AZURE_STORAGE_KEY`, `AZURE_STORAGE_SERVICE_ENDPOINT` | the account, its key, the address |
//! | `AZURE_STORAGE_CONNECTION_STRING` | all of them, or an address and a signature |
//! | `AZURE_STORAGE_USE_EMULATOR`, `AZURITE_BLOB_STORAGE_URL` | the emulator of this machine, or at an address |
//! | `STORAGE_EMULATOR_HOST` | the address of an emulator of Google's, without credentials |
//! | `CLOUDSDK_CONFIG` | the folder with Google's credentials of a user |

use std::path::Path;

/// A setting that was found by another name, or in another one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundSetting {
    /// As the protocols' library has it.
    pub(super) name: &'static str,
    pub(super) value: String,
    /// What it is called where it was found.
    pub(super) called: &'static str,
}

/// Why settings make no sense: in words without their values, which are secrets.
pub(super) struct Unclear {
    pub(super) why: String,
    pub(super) advice: &'static str,
}

/// What only says where other settings are, so that nothing takes it as it is.
pub(super) const NOT_TAKEN: [&str; 5] = [
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURITE_BLOB_STORAGE_URL",
    "STORAGE_EMULATOR_HOST",
    "CLOUDSDK_CONFIG",
];

/// The names of Google's credentials, none of which an emulator is sent.
pub(super) const GOOGLE_CREDENTIALS: [&str; 5] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
];

const GOOGLE_KEY: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";
/// The file with the credentials of a user.
const USER_CREDENTIALS: &str = "application_default_credentials.json";

const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT_NAME";
const KEY: &str = "AZURE_STORAGE_ACCOUNT_KEY";
const SAS: &str = "AZURE_STORAGE_SAS_KEY";
const ENDPOINT: &str = "AZURE_STORAGE_ENDPOINT";

const USE_EMULATOR: &str = "AZURE_STORAGE_USE_EMULATOR";
const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// The account of Azure's emulators and its key, which everybody knows.
const EMULATOR: (&str, &str) =
    ("devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==");

/// The settings of Azure.
///
/// # Errors
/// Where a connection string makes no sense.
pub(super) fn of_azure<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Vec<FoundSetting>, Unclear> {
    let mut found = Vec::new();
    let mut add = |name, value: &str, called| found.push(FoundSetting { name, value: value.to_owned(), called });
    for (theirs, name) in
        [("AZURE_STORAGE_ACCOUNT", ACCOUNT), ("AZURE_STORAGE_KEY", KEY), ("AZURE_STORAGE_SERVICE_ENDPOINT", ENDPOINT)]
    {
        if let Some(value) = get(theirs) {
            let value = if name == ENDPOINT { value.trim_end_matches('/') } else { value };
            add(name, value, theirs);
        }
    }
    if uses_emulator(get(USE_EMULATOR))? {
        let named = get("AZURITE_BLOB_STORAGE_URL");
        let url = named.unwrap_or("http://127.0.0.1:10000").trim_end_matches('/');
        let account = get(ACCOUNT).or(get("AZURE_STORAGE_ACCOUNT")).unwrap_or(EMULATOR.0);
        add(ACCOUNT, account, USE_EMULATOR);
        add(ENDPOINT, &format!("{url}/{account}"), named.map_or(USE_EMULATOR, |_| "AZURITE_BLOB_STORAGE_URL"));
        let keys = [KEY, "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY", SAS, "AZURE_STORAGE_SAS_TOKEN"];
        if keys.iter().all(|name| get(name).is_none()) {
            add(KEY, EMULATOR.1, USE_EMULATOR);
        }
    }
    if let Some(text) = get(CONNECTION) {
        found.extend(of_connection(text)?);
    }
    Ok(found)
}

/// Whether the emulator is to be used.
///
/// # Errors
/// A value that may mean either: the cloud would get what is for the emulator.
fn uses_emulator(value: Option<&str>) -> Result<bool, Unclear> {
    match value.unwrap_or("no").to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(Unclear {
            why: format!("{USE_EMULATOR} is neither yes nor no"),
            advice: "set it to true or false, or leave it out",
        }),
    }
}

/// What a connection string of Azure says, as Azure's own libraries read it.
fn of_connection(text: &str) -> Result<Vec<FoundSetting>, Unclear> {
    let unclear = |what: &str| Unclear {
        why: format!("{CONNECTION} {what}"),
        advice: "copy it from the access keys of the account: AccountName=...;AccountKey=...;...",
    };
    let mut pairs = Vec::new();
    for pair in text.trim_end_matches(';').split(';') {
        let (name, value) = pair.split_once('=').ok_or_else(|| unclear("is no list of NAME=VALUE;NAME=VALUE"))?;
        // Azure's libraries do not know a name with a space, and would ask another server.
        if name != name.trim() || value != value.trim() {
            return Err(unclear("has a space around a name or a value"));
        }
        pairs.push((name, value));
    }
    // Of a name that is there twice, the last one counts.
    let get = |wanted: &str| {
        let found = pairs.iter().rfind(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    };
    let mut found = Vec::new();
    let mut add = |name, value: String, called| found.push(FoundSetting { name, value, called });
    if get("UseDevelopmentStorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        if get("DevelopmentStorageProxyUri").is_some() {
            return Err(unclear("names a proxy of the emulator, and no proxy is used"));
        }
        let (account, key) = EMULATOR;
        let called = "UseDevelopmentStorage of AZURE_STORAGE_CONNECTION_STRING";
        add(ACCOUNT, account.to_owned(), called);
        add(KEY, key.to_owned(), called);
        add(ENDPOINT, format!("http://127.0.0.1:10000/{account}"), called);
        return Ok(found);
    }
    let endpoint = get("BlobEndpoint").map(|address| address.trim_end_matches('/'));
    let account = get("AccountName").or_else(|| endpoint.and_then(account_of));
    let account = account.ok_or_else(|| unclear("has neither AccountName nor BlobEndpoint"))?;
    let named = "AccountName of AZURE_STORAGE_CONNECTION_STRING";
    add(ACCOUNT, account.to_owned(), named);
    match (get("AccountKey"), get("SharedAccessSignature")) {
        (Some(key), _) => add(KEY, key.to_owned(), "AccountKey of AZURE_STORAGE_CONNECTION_STRING"),
        (None, Some(sas)) => add(SAS, sas.to_owned(), "SharedAccessSignature of AZURE_STORAGE_CONNECTION_STRING"),
        (None, None) => return Err(unclear("has neither AccountKey nor SharedAccessSignature")),
    }
    // As in Azure's own library, the protocol counts beside a suffix alone.
    match (endpoint, get("DefaultEndpointsProtocol"), get("EndpointSuffix")) {
        (Some(address), ..) => {
            add(ENDPOINT, address.to_owned(), "BlobEndpoint of AZURE_STORAGE_CONNECTION_STRING");
        }
        (None, _, None) => {}
        (None, protocol, Some(suffix)) => {
            let called = "EndpointSuffix of AZURE_STORAGE_CONNECTION_STRING";
            add(ENDPOINT, format!("{}://{account}.blob.{suffix}", protocol.unwrap_or("https")), called);
        }
    }
    Ok(found)
}

/// The account of an address: the first part of the host's name, or the path behind a number or
/// behind a name that has no parts.
fn account_of(address: &str) -> Option<&str> {
    let behind = address.split_once("://")?.1;
    let (host, path) = behind.split_once('/').unwrap_or((behind, ""));
    let name = host.split(':').next()?;
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let account = match name.split_once('.') {
        Some((first, _)) if !is_number => first,
        _ => path.split('/').next()?,
    };
    Some(account).filter(|account| !account.is_empty())
}

/// The settings of Google. `home` is where its tools keep the credentials of a user usually.
///
/// # Errors
/// Where settings would be taken otherwise than by Google's own libraries.
pub(super) fn of_google<'a>(
    get: impl Fn(&str) -> Option<&'a str>,
    home: Option<&Path>,
) -> Result<Vec<FoundSetting>, Unclear> {
    let emulator = "STORAGE_EMULATOR_HOST";
    if let Some(host) = get(emulator) {
        let host = host.trim_end_matches('/');
        let value = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
        let key = r#"{"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": true}"#;
        return Ok(vec![
            FoundSetting { name: "GOOGLE_BASE_URL", value, called: emulator },
            FoundSetting { name: "GOOGLE_SERVICE_ACCOUNT_KEY", value: key.to_owned(), called: emulator },
        ]);
    }
    let files = GOOGLE_CREDENTIALS.into_iter().filter(|name| !["GOOGLE_BEARER_TOKEN", GOOGLE_KEY].contains(name));
    if let Some(name) = files.into_iter().find(|name| get(name).is_some_and(|value| value.contains(['{', '\n']))) {
        return Err(Unclear {
            why: format!("{name} is the path of a file, and has its text"),
            advice: "GOOGLE_SERVICE_ACCOUNT_KEY takes the text of a key",
        });
    }
    let folder = "CLOUDSDK_CONFIG";
    let is_open = GOOGLE_CREDENTIALS.iter().all(|name| get(name).is_none());
    let Some(kept) = get(folder).filter(|_| is_open) else { return Ok(Vec::new()) };
    let file = Path::new(kept).join(USER_CREDENTIALS);
    if file.exists() {
        let (name, value) = ("GOOGLE_APPLICATION_CREDENTIALS", file.to_string_lossy().into_owned());
        return Ok(vec![FoundSetting { name, value, called: folder }]);
    }
    // The protocols' library would take what Google's own do not look at then.
    if home.is_some_and(|home| home.join(".config/gcloud").join(USER_CREDENTIALS).exists()) {
        return Err(Unclear {
            why: format!("{folder} names a folder without {USER_CREDENTIALS}, and the usual folder has one"),
            advice: "set GOOGLE_APPLICATION_CREDENTIALS to the file that is meant",
        });
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(found: Vec<FoundSetting>) -> Vec<String> {
        found.into_iter().map(|FoundSetting { name, value, .. }| format!("{name} {value}")).collect()
    }

    fn azure(pairs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let get = |wanted: &str| pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        of_azure(get).map(shown).map_err(|unclear| unclear.why)
    }

    #[test]
    fn connection_strings_are_read() {
        let of = |text: &str| azure(&[(CONNECTION, text)]);
        let usual = "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=a2V5==;EndpointSuffix=core.windows.net";
        let expected = [
            "AZURE_STORAGE_ACCOUNT_NAME me",
            "AZURE_STORAGE_ACCOUNT_KEY a2V5==",
            "AZURE_STORAGE_ENDPOINT https://me.blob.core.windows.net",
        ];
        assert_eq!(of(usual).unwrap(), expected);
        assert_eq!(of("accountname=me;ACCOUNTKEY=a2V5==;").unwrap(), expected[..2]);
        // It would go without TLS.
        assert_eq!(of("DefaultEndpointsProtocol=http;AccountName=me;AccountKey=a2V5==").unwrap(), expected[..2]);
        let signed =
            "BlobEndpoint=https://me.blob.example/;SharedAccessSignature=sv=1&sig=x%3D;QueueEndpoint=https://q";
        assert_eq!(
            of(signed).unwrap(),
            [
                "AZURE_STORAGE_ACCOUNT_NAME me",
                "AZURE_STORAGE_SAS_KEY sv=1&sig=x%3D",
                "AZURE_STORAGE_ENDPOINT https://me.blob.example",
            ]
        );
        let local = of("UseDevelopmentStorage=true").unwrap();
        assert!(
            local.contains(&"AZURE_STORAGE_ENDPOINT http://127.0.0.1:10000/devstoreaccount1".to_owned()),
            "{local:?}"
        );
        for (text, words) in [
            ("", "is no list"),
            ("secret", "is no list"),
            ("AccountName=me;secret", "is no list"),
            ("AccountName=me", "neither AccountKey"),
            ("AccountKey=secret", "neither AccountName"),
            ("AccountName=me; AccountKey=secret", "has a space"),
            ("AccountName=me;AccountKey= secret", "has a space"),
            ("AccountName=;AccountKey=secret", "neither AccountName"),
            ("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://secret", "proxy"),
        ] {
            let why = of(text).unwrap_err();
            assert!(why.contains(words) && !why.contains("secret"), "{text}: {why}");
        }
    }

    #[test]
    fn accounts_are_parts_of_addresses() {
        assert_eq!(account_of("https://me.blob.core.windows.net"), Some("me"));
        assert_eq!(account_of("http://127.0.0.1:10000/me/x"), Some("me"));
        assert_eq!(account_of("http://azurite:10000/me"), Some("me"));
        for none in ["me.blob", "http://127.0.0.1:10000", "http://", "http://host/"] {
            assert_eq!(account_of(none), None, "{none}");
        }
    }

    #[test]
    fn emulators_are_found() {
        let on = ("AZURE_STORAGE_USE_EMULATOR", "True");
        let found = azure(&[on, ("AZURITE_BLOB_STORAGE_URL", "http://azurite:7/")]).unwrap();
        assert_eq!(
            found[..2],
            ["AZURE_STORAGE_ACCOUNT_NAME devstoreaccount1", "AZURE_STORAGE_ENDPOINT http://azurite:7/devstoreaccount1"]
        );
        assert!(found[2].starts_with("AZURE_STORAGE_ACCOUNT_KEY Eby8"), "{found:?}");
        let mine = azure(&[on, ("AZURE_STORAGE_ACCOUNT", "me"), ("AZURE_STORAGE_KEY", "k")]).unwrap();
        assert!(mine.contains(&"AZURE_STORAGE_ENDPOINT http://127.0.0.1:10000/me".to_owned()), "{mine:?}");
        assert!(!mine.iter().any(|line| line.contains("Eby8")), "{mine:?}");
        for odd in ["true ", "enabled", "2"] {
            assert!(azure(&[("AZURE_STORAGE_USE_EMULATOR", odd)]).unwrap_err().contains("neither yes nor no"));
        }
        assert_eq!(azure(&[("AZURE_STORAGE_USE_EMULATOR", "false")]).unwrap(), [""; 0]);
        let google = |host: &'static str| {
            shown(of_google(|name| (name == "STORAGE_EMULATOR_HOST").then_some(host), None).unwrap_or_default())
        };
        assert_eq!(google("localhost:4443")[0], "GOOGLE_BASE_URL http://localhost:4443");
        assert_eq!(google("https://h/")[0], "GOOGLE_BASE_URL https://h");
        assert_eq!(google("h").len(), 2);
    }

    #[test]
    fn google_is_not_asked_with_what_its_own_libraries_do_not_look_at() {
        let folder = datapipes_testkit::TempFolder::new().unwrap();
        let with = |pairs: Vec<(&'static str, String)>| {
            let found = of_google(
                |wanted| pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str()),
                Some(&folder.path("")),
            );
            found.map(shown).map_err(|unclear| unclear.why)
        };
        let sdk = || ("CLOUDSDK_CONFIG", folder.path("sdk").display().to_string());
        assert_eq!(with(vec![sdk()]).unwrap(), [""; 0]);
        std::fs::create_dir_all(folder.path(".config/gcloud")).unwrap();
        std::fs::write(folder.path(".config/gcloud").join(USER_CREDENTIALS), "{}").unwrap();
        assert!(with(vec![sdk()]).unwrap_err().contains("without application_default"));
        assert_eq!(with(vec![sdk(), ("GOOGLE_APPLICATION_CREDENTIALS", "/f".into())]).unwrap(), [""; 0]);
        std::fs::create_dir_all(folder.path("sdk")).unwrap();
        std::fs::write(folder.path("sdk").join(USER_CREDENTIALS), "{}").unwrap();
        assert!(with(vec![sdk()]).unwrap()[0].ends_with("sdk/application_default_credentials.json"));
        for name in ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"] {
            let why = with(vec![(name, r#"{"private_key": "secret"}"#.into())]).unwrap_err();
            assert!(why.contains(name) && !why.contains("secret"), "{why}");
        }
    }
}
