//! A public key as `openssl pkey -pubout` writes it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::librechat::auth::signature::PublicKey;

const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";
/// Part of the first line of every private key.
const PRIVATE: &str = "PRIVATE KEY-----";

/// Tags of DER.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;
/// id-Ed25519 (RFC 8410), without parameters.
const ED25519: [u8; 5] = [0x06, 0x03, 0x2b, 0x65, 0x70];
/// rsaEncryption (RFC 3279), with the parameter NULL.
const RSA: [u8; 13] =
    [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

/// Reads the only key in a text, or returns what is wrong with it.
pub fn public_key(text: &str) -> Result<PublicKey, &'static str> {
    if text.contains(PRIVATE) {
        return Err("it is a private key, which only LibreChat should have");
    }
    let inside = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let Some((inside, after)) = inside else {
        return Err("it contains no public key");
    };
    if after.contains(BEGIN) {
        return Err("it contains more than one key");
    }
    let digits: String = inside.split_ascii_whitespace().collect();
    let der = BASE64_STANDARD.decode(digits);
    let key = der.ok().and_then(|der| of_der(&der));
    key.ok_or("it is not an Ed25519 key or an RSA key of 2048 bits or more")
}

/// A SubjectPublicKeyInfo (RFC 5280, 4.1).
fn of_der(der: &[u8]) -> Option<PublicKey> {
    let info = only(SEQUENCE, der)?;
    let (algorithm, rest) = next(SEQUENCE, info)?;
    // The number of unused bits must be 0.
    let key = only(BIT_STRING, rest)?.strip_prefix(&[0])?;
    if algorithm == ED25519 {
        PublicKey::ed25519(key)
    } else if algorithm == RSA {
        let (modulus, rest) = next(INTEGER, only(SEQUENCE, key)?)?;
        PublicKey::rsa(modulus, only(INTEGER, rest)?)
    } else {
        None
    }
}

/// The content of the DER value at the beginning of the input, and the rest.
fn next(tag: u8, input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = input.split_first_chunk::<2>()?;
    let (length, rest) = match *head {
        [found, _] if found != tag => return None,
        [_, short @ 0..=0x7f] => (usize::from(short), rest),
        [_, 0x81] => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        [_, 0x82] => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        [_, _] => return None,
    };
    rest.split_at_checked(length)
}

/// The content of the DER value that is the whole input.
fn only(tag: u8, input: &[u8]) -> Option<&[u8]> {
    let (inside, after) = next(tag, input)?;
    after.is_empty().then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::librechat::auth::signature::Algorithm;

    /// The keys of RFC 8037, A.1, and of RFC 7515, A.2.1, as openssl writes them.
    const ED_PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
        -----END PUBLIC KEY-----\n";
    const RSA_PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
        MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAofgWCuLjybRlzo0tZWJj\n\
        NiuSfb4p4fAkd/wWJcyQoTbji9k0l8W26mPddxHmfHQp+Vaw+4qPCJrcS2mJPMEz\n\
        P1Pt0Bm4d4QlL+yRT+SFd2lZS+pCgNMsD1W/YpRPEwOWvG6b32690r2jZ47soMZo\n\
        9wGzjb/7OMg0LOL+bSf63kpaSHSXndS5z5rexMdbBYUsLA9e+KXBdQOS+UTo7WTB\n\
        EMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6/I5IhlJH7aGhyxX\n\
        FvUK+DWNmoudF8NAco9/h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXp\n\
        oQIDAQAB\n\
        -----END PUBLIC KEY-----\n";

    #[test]
    fn public_keys_written_by_openssl_are_read() {
        let algorithm = |text| public_key(text).map(|key| key.algorithm());
        assert_eq!(algorithm(ED_PEM), Ok(Algorithm::EdDsa));
        assert_eq!(algorithm(RSA_PEM), Ok(Algorithm::Rs256));
    }

    #[test]
    fn a_text_without_one_whole_public_key_is_refused() {
        let private = "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n";
        assert!(public_key(private).is_err_and(|why| why.contains("private")));
        let two = format!("{ED_PEM}{RSA_PEM}");
        assert!(public_key(&two).is_err_and(|why| why.contains("more than one")));
        for wrong in ["", "x", BEGIN, &format!("{BEGIN}\n{END}"), &RSA_PEM.replace("MIIB", "MIIC")]
        {
            assert!(public_key(wrong).is_err(), "{wrong:.40}");
        }
        let der = BASE64_STANDARD
            .decode(ED_PEM.lines().filter(|line| !line.starts_with('-')).collect::<String>());
        let der = der.expect("base64");
        for length in 0..der.len() {
            assert!(of_der(&der[..length]).is_none(), "{length}");
        }
        assert!(of_der(&[&der[..], &[0]].concat()).is_none());
    }
}
