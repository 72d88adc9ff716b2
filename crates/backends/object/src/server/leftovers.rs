//! Unfinished uploads to a key that ended processes left.
//!
//! A process that is killed cannot abort its upload, whose parts are stored, and charged, until
//! somebody removes them. An upload that is still being written gets parts all the time, so one
//! without a new part for a while is of a process that ended. (Rejected: removing all uploads to
//! the key, which would end a writer in another process; a mark in the upload, which lists do not
//! show.)
//!
//! The requests are those of S3. Azure drops blocks that were not published after a week by itself.

use std::time::Duration;

use http::Method;
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Store;
use super::Transport;
use super::failure::{BrokenExchange, ServerRefusal};
use super::secrets::Secrets;
use super::xml;

/// The most uploads to one key that are looked at.
const MAX_UPLOADS: usize = 1000;
/// The most pages of a list of parts: an upload has at most 10,000, and a page has 1000.
const MAX_PART_PAGES: u32 = 20;
/// How long a signature is valid.
const VALID: Duration = Duration::from_secs(300);

/// An unfinished upload, and how long ago it last got a part, by the server's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnfinishedUpload {
    pub(crate) id: String,
    pub(crate) idle: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadList {
    #[serde(default)]
    upload: Vec<ListedUpload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedUpload {
    key: String,
    upload_id: String,
    initiated: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartList {
    #[serde(default)]
    part: Vec<ListedPart>,
    is_truncated: Option<String>,
    next_part_number_marker: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedPart {
    last_modified: Option<String>,
}

/// Lists the unfinished uploads to the store's key.
///
/// # Errors
/// Why they cannot be listed, in words.
pub(crate) async fn unfinished(store: &Store, transport: &Transport) -> Result<Vec<UnfinishedUpload>, String> {
    let key = store.path.as_ref();
    let (listed, now) = listed(store, transport, key).await?;
    let mut found = Vec::new();
    for upload in listed.into_iter().filter(|upload| upload.key == key).take(MAX_UPLOADS) {
        let last = last_progress(store, transport, &upload, now).await?;
        found.push(UnfinishedUpload { id: upload.upload_id, idle: Duration::from_secs(now.saturating_sub(last)) });
    }
    Ok(found)
}

/// When an upload last got a part, by all pages of the list of them. What is not understood counts
/// as now, so that the upload is left alone: a time, or a list that does not go on.
async fn last_progress(store: &Store, transport: &Transport, upload: &ListedUpload, now: u64) -> Result<u64, String> {
    let seconds = |time: &str| seconds_of_iso(time).unwrap_or(now);
    let mut last = seconds(&upload.initiated);
    let mut behind = 0;
    for _ in 0..MAX_PART_PAGES {
        let marker = behind.to_string();
        let query = [("part-number-marker", marker.as_str()), ("uploadId", &upload.upload_id)];
        let query = if behind == 0 { &query[1..] } else { &query[..] };
        let (xml, _) = get(store, transport, &store.path, query).await?;
        let parts: PartList = document(&xml, "ListPartsResult", "list of parts")?;
        let times = parts.part.iter().filter_map(|part| part.last_modified.as_deref());
        last = times.map(seconds).chain([last]).max().unwrap_or(now);
        match parts.is_truncated.as_deref().map(str::trim) {
            None | Some("false") => return Ok(last),
            Some(_) => {}
        }
        let next = parts.next_part_number_marker.and_then(|next| next.trim().parse::<u32>().ok());
        match next.filter(|next| *next > behind) {
            Some(next) => behind = next,
            None => return Ok(now),
        }
    }
    Ok(now)
}

/// Reads a document that must have this root.
fn document<T: DeserializeOwned>(xml: &str, root: &str, what: &str) -> Result<T, String> {
    if xml::root(xml).as_deref() != Ok(root) {
        return Err(format!("the server's answer is no {what}"));
    }
    quick_xml::de::from_str(xml).map_err(|_| format!("the server's {what} cannot be read"))
}

/// Ends the unfinished uploads to keys that begin with `prefix` and have no further `/`, however
/// old they are. Returns how many.
///
/// # Errors
/// Why they cannot be listed or ended, in words.
pub(crate) async fn end_all(store: &Store, transport: &Transport, prefix: &str) -> Result<usize, String> {
    let Some(uploads) = &store.uploads else { return Ok(0) };
    let mut ended = 0;
    loop {
        let (listed, _) = listed(store, transport, prefix).await?;
        let is_meant = |upload: &&ListedUpload| upload.key.strip_prefix(prefix).is_some_and(|rest| !rest.contains('/'));
        let before = ended;
        for upload in listed.iter().filter(is_meant) {
            let path = Path::parse(&upload.key).map_err(|e| format!("the list of uploads: {e}"))?;
            match uploads.abort_multipart(&path, &upload.upload_id).await {
                Ok(()) => ended += 1,
                // Its own writer was quicker.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(words(&error, &store.secrets)),
            }
        }
        // A list has so many at most.
        if listed.len() < MAX_UPLOADS || ended == before {
            return Ok(ended);
        }
    }
}

/// Lists unfinished uploads to keys that begin with `prefix`, and the server's time in seconds.
async fn listed(store: &Store, transport: &Transport, prefix: &str) -> Result<(Vec<ListedUpload>, u64), String> {
    let (xml, now) = get(store, transport, &Path::default(), &[("prefix", prefix), ("uploads", "")]).await?;
    let list: UploadList = document(&xml, "ListMultipartUploadsResult", "list of uploads")?;
    Ok((list.upload, now))
}

/// Gets a page of XML, and the server's time in seconds.
async fn get(
    store: &Store,
    transport: &Transport,
    path: &Path,
    query: &[(&str, &str)],
) -> Result<(String, u64), String> {
    let Some(s3) = &store.s3 else { return Err("only S3 lists uploads".into()) };
    let options = SignedUrlOptions::new().with_query(query.iter().map(|(name, value)| (*name, *value)));
    let url = s3.signed_url_opts(Method::GET, path, VALID, &options).await;
    let url = url.map_err(|_| "no credentials to sign with".to_owned())?;
    let request: HttpRequest = http::Request::builder()
        .method(Method::GET)
        .uri(url.as_str())
        .body(HttpRequestBody::empty())
        .map_err(|e| e.to_string())?;
    let client = transport.connector(store.exchange.clone()).connect(&object_store::ClientOptions::new());
    let answer = client.map_err(|e| e.to_string())?.execute(request).await.map_err(|e| words(&e, &store.secrets))?;
    let date = answer.headers().get(http::header::DATE).and_then(|date| seconds_of_date(date.to_str().ok()?));
    let bytes = answer.into_body().bytes().await.map_err(|e| words(&e, &store.secrets))?;
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| "the list is no text".to_owned())?;
    Ok((text, date.ok_or("the server does not say its time")?))
}

fn words(error: &(dyn std::error::Error + 'static), secrets: &Secrets) -> String {
    let source = error.source();
    let refusal = source.and_then(|e| e.downcast_ref::<ServerRefusal>()).map(|refusal| refusal.words(secrets));
    let broken = source.and_then(|e| e.downcast_ref::<BrokenExchange>()).map(ToString::to_string);
    refusal.or(broken).unwrap_or_else(|| "the request failed".into())
}

/// The seconds since 1970 of a date as HTTP writes it: `Thu, 26 Nov 2026 02:00:00 GMT`.
fn seconds_of_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = u64::try_from(MONTHS.iter().position(|month| *month == name)?).ok()? + 1;
    let year = words.next()?.parse().ok()?;
    seconds(year, month, day, words.next()?)
}

/// The seconds since 1970 of a date as S3 writes it: `2026-11-26T02:00:00.000Z`.
fn seconds_of_iso(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|n| n.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    seconds(year, month, day, time.split('.').next()?)
}

fn seconds(year: u64, month: u64, day: u64, time: &str) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let mut time = time.split(':').map(|n| n.parse::<u64>().ok().filter(|n| *n < 61));
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    // Days from March 1 of year 0, so that a leap day is the last day of a year (Hinnant, 2013).
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    Some(days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        assert_eq!(seconds_of_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds_of_date("Thu, 26 Nov 2026 02:38:02 GMT"), Some(1_795_660_682));
        assert_eq!(seconds_of_iso("2026-11-26T02:38:02.123Z"), Some(1_795_660_682));
        assert_eq!(seconds_of_iso("2000-02-29T23:59:59Z"), Some(951_868_799));
        for odd in ["", "2026", "2026-13-01T00:00:00Z", "2026-11-26T02:38", "99999999999999999999-1-1T1:1:1Z"] {
            assert_eq!(seconds_of_iso(odd), None, "{odd}");
        }
    }

    #[test]
    fn lists_are_read() {
        let xml = "<ListMultipartUploadsResult><Bucket>b</Bucket><Upload><Key>k</Key><UploadId>1</UploadId>\
                   <Initiated>2026-11-26T02:38:02Z</Initiated></Upload><Upload><Key>k2</Key><UploadId>2</UploadId>\
                   <Initiated>x</Initiated></Upload></ListMultipartUploadsResult>";
        let read = |xml: &str| document::<UploadList>(xml, "ListMultipartUploadsResult", "list of uploads");
        assert_eq!(read(xml).unwrap().upload.len(), 2);
        assert!(read("<ListMultipartUploadsResult/>").unwrap().upload.is_empty());
        for odd in ["<ListMultipartUploadsResult><Upload>", "<html/>", ""] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }
}
