//! What a page of a list says of itself. What is left out of a list would be left out of a sort, so
//! an answer that is not surely a page, or not surely whole, is an error.

use http::Uri;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::xml;

/// Whose list a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListProtocol {
    /// The second version of S3's, which Google's servers have too.
    S3,
    Azure,
}

impl ListProtocol {
    /// The list that a request asks for, if it does.
    pub(crate) fn of(uri: &Uri) -> Option<ListProtocol> {
        let mut pairs = uri.query()?.split('&');
        pairs.find_map(|pair| match pair {
            "list-type=2" => Some(ListProtocol::S3),
            "comp=list" => Some(ListProtocol::Azure),
            _ => None,
        })
    }

    /// Checks that an answer is a page of such a list, with all that it says to have.
    ///
    /// # Errors
    /// What is wrong, in words without its text.
    pub(crate) fn check(self, answer: &[u8]) -> Result<(), &'static str> {
        let text = std::str::from_utf8(answer).map_err(|_| "it is no text")?;
        let root = xml::root(text)?;
        match self {
            ListProtocol::S3 if root == "ListBucketResult" => check_s3(text),
            ListProtocol::Azure if root == "EnumerationResults" => check_azure(text),
            _ => Err("it is another document"),
        }
    }
}

/// A page of S3.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct S3Page {
    is_truncated: Option<String>,
    next_continuation_token: Option<String>,
    key_count: Option<u64>,
    #[serde(default)]
    contents: Vec<IgnoredAny>,
    #[serde(default)]
    common_prefixes: Vec<IgnoredAny>,
}

/// A page of Azure. At the end of a list, `NextMarker` is there and has no text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AzurePage {
    next_marker: Option<IgnoredAny>,
    #[serde(default)]
    blobs: AzureBlobs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AzureBlobs {
    #[serde(default)]
    blob: Vec<AzureBlob>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AzureBlob {
    name: AzureName,
}

#[derive(Debug, Deserialize)]
struct AzureName {
    #[serde(rename = "@Encoded")]
    encoded: Option<String>,
}

fn check_azure(text: &str) -> Result<(), &'static str> {
    let page: AzurePage = quick_xml::de::from_str(text).map_err(|_| "it cannot be read")?;
    page.next_marker.ok_or("it does not say whether there is more")?;
    // The protocols' library takes such a name as it is, which is that of another object.
    if page.blobs.blob.iter().any(|blob| blob.name.encoded.as_deref().is_some_and(|encoded| encoded != "false")) {
        return Err("a name has characters that XML cannot have");
    }
    Ok(())
}

fn check_s3(text: &str) -> Result<(), &'static str> {
    let page: S3Page = quick_xml::de::from_str(text).map_err(|_| "it cannot be read")?;
    let is_truncated = page.is_truncated.ok_or("it does not say whether there is more")?;
    let has_more = match is_truncated.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => true,
        "false" | "0" => false,
        _ => return Err("it does not say whether there is more"),
    };
    if has_more && page.next_continuation_token.is_none_or(|token| token.trim().is_empty()) {
        return Err("it is not whole, and does not say how it goes on");
    }
    let listed = page.contents.len().saturating_add(page.common_prefixes.len());
    // Some servers do not count folders.
    if page.key_count.is_some_and(|count| count > listed as u64) {
        return Err("it has fewer keys than it says");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "<Contents><Key>in/a</Key><Size>4</Size></Contents>";
    const TOKEN: &str = "<NextContinuationToken>t</NextContinuationToken>";

    fn check(inner: &str) -> Result<(), &'static str> {
        ListProtocol::S3.check(format!("<ListBucketResult>{inner}{KEY}</ListBucketResult>").as_bytes())
    }

    #[test]
    fn a_list_that_is_cut_is_seen_however_it_is_written() {
        for more in [
            "<IsTruncated>true</IsTruncated>",
            "<IsTruncated>True</IsTruncated>",
            "<IsTruncated>1</IsTruncated>",
            "<IsTruncated >\n true</IsTruncated >",
            "<IsTruncated x=\"1\">true</IsTruncated>",
            "<s3:IsTruncated>true</s3:IsTruncated>",
            "<IsTruncated><![CDATA[true]]></IsTruncated>",
            "<IsTruncated>tru&#101;</IsTruncated>",
            "<!--<IsTruncated>false</IsTruncated>--><IsTruncated>true</IsTruncated>",
            "<IsTruncated>true</IsTruncated><NextMarker>in/a</NextMarker>",
        ] {
            assert_eq!(check(more), Err("it is not whole, and does not say how it goes on"), "{more}");
            assert_eq!(check(&format!("{more}{TOKEN}")), Ok(()), "{more}");
        }
        for unsaid in ["", "<IsTruncated/>", "<IsTruncated>maybe</IsTruncated>"] {
            assert_eq!(check(unsaid), Err("it does not say whether there is more"), "{unsaid}");
        }
        let whole = "<IsTruncated>false</IsTruncated>";
        assert!(check(whole).is_ok() && check(&format!("{whole}{whole}")).is_err());
    }

    #[test]
    fn a_list_has_what_it_counts_and_nothing_around_it() {
        let whole = "<IsTruncated>false</IsTruncated>";
        for (count, is_fine) in [(0, true), (1, true), (2, false)] {
            assert_eq!(check(&format!("{whole}<KeyCount>{count}</KeyCount>")).is_ok(), is_fine, "{count}");
        }
        let s3 = |text: &str| ListProtocol::S3.check(text.as_bytes());
        let page = format!("<ListBucketResult>{whole}</ListBucketResult>");
        assert_eq!(s3(&page), Ok(()));
        for odd in [format!("{page}garbage"), page.replace("ListBucketResult", "html"), "<html/>".into(), String::new()]
        {
            assert!(s3(&odd).is_err(), "{odd}");
        }
        let azure = |text: &str| ListProtocol::Azure.check(text.as_bytes());
        assert!(azure("<EnumerationResults><NextMarker/></EnumerationResults>").is_ok() && azure("<html/>").is_err());
    }

    #[test]
    fn requests_for_lists_are_known() {
        let of = |uri: &str| ListProtocol::of(&uri.parse().unwrap());
        assert_eq!(of("http://h/b?list-type=2&prefix=x"), Some(ListProtocol::S3));
        assert_eq!(of("http://h/b?restype=container&comp=list"), Some(ListProtocol::Azure));
        assert_eq!(of("http://h/b?uploads"), None);
    }

    #[test]
    fn a_list_of_azure_says_whether_it_ends() {
        let check = |inner: &str| {
            ListProtocol::Azure.check(format!("<EnumerationResults>{inner}</EnumerationResults>").as_bytes())
        };
        let blob = |name: &str| {
            format!("<Blobs><Blob>{name}<Size>1</Size></Blob><BlobPrefix><Name>p/</Name></BlobPrefix></Blobs>")
        };
        let plain = blob("<Name>a &amp; b</Name>");
        for whole in ["<NextMarker/>", "<NextMarker></NextMarker>", "<NextMarker>t</NextMarker>"] {
            assert_eq!(check(&format!("<Prefix>p</Prefix>{plain}{whole}")), Ok(()));
            assert_eq!(check(&format!("<Blobs/>{whole}")), Ok(()));
        }
        assert!(check(&plain).unwrap_err().contains("whether there is more"));
        let encoded = blob("<Name Encoded=\"true\">a%01</Name>");
        assert!(check(&format!("{encoded}<NextMarker/>")).unwrap_err().contains("XML cannot have"));
    }
}
