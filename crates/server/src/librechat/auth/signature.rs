//! Public keys, and the verification of signatures. Nothing here is secret.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use ed25519_dalek::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};

#[derive(Debug, Clone)]
pub enum PublicKey {
    Ed25519(VerifyingKey),
    Rsa(RsaKey),
}

/// The signature algorithm of a key. The key decides it, never the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    EdDsa,
    Rs256,
}

#[derive(Debug, Clone)]
pub struct RsaKey {
    modulus: BoxedMontyParams,
    exponent: BoxedUint,
    /// The length in bytes of the modulus and of every signature.
    length: usize,
}

/// Shorter keys are broken; longer ones only cost time.
const RSA_BYTES_MIN: usize = 2048 / 8;
const RSA_BYTES_MAX: usize = 8192 / 8;
/// Nearly all keys use the exponent 65537. Each bit costs time at every request.
const RSA_EXPONENT_BYTES_MAX: usize = 4;
/// The DER prefix of a SHA-256 in a signature (RFC 8017, 9.2, note 1).
const SHA256_FOLLOWS: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];

impl Algorithm {
    /// The name in a token's header.
    pub fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Rs256 => "RS256",
        }
    }
}

impl PublicKey {
    /// `None` if the bytes are not a key, or a weak key for which everyone can sign.
    pub fn ed25519(bytes: &[u8]) -> Option<Self> {
        let key = VerifyingKey::from_bytes(bytes.try_into().ok()?).ok()?;
        (!key.is_weak()).then_some(Self::Ed25519(key))
    }

    /// Big-endian; `None` for a key that is too short, too long or impossible.
    pub fn rsa(modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let (modulus, exponent) = (trimmed(modulus), trimmed(exponent));
        let length = modulus.len();
        if !(RSA_BYTES_MIN..=RSA_BYTES_MAX).contains(&length)
            || !(1..=RSA_EXPONENT_BYTES_MAX).contains(&exponent.len())
            // With exponent 1 every message is its own signature; an even exponent is invalid.
            || exponent == [1]
            || exponent.last().is_none_or(|last| last % 2 == 0)
        {
            return None;
        }
        let modulus = Odd::new(BoxedUint::from_be_slice_vartime(modulus));
        Some(Self::Rsa(RsaKey {
            modulus: BoxedMontyParams::new_vartime(modulus.into_option()?),
            exponent: BoxedUint::from_be_slice_vartime(exponent),
            length,
        }))
    }

    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Ed25519(_) => Algorithm::EdDsa,
            Self::Rsa(_) => Algorithm::Rs256,
        }
    }

    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
            Self::Rsa(key) => key.has_signed(message, signature),
        }
    }
}

impl RsaKey {
    /// RSASSA-PKCS1-v1_5 (RFC 8017, 8.2.2). The decrypted block is never parsed: the function
    /// builds the expected block and compares.
    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let modulus = self.modulus.modulus().as_ref();
        let number = |bytes| BoxedUint::from_be_slice(bytes, modulus.bits_precision());
        let (Ok(signature_number), Ok(expected)) =
            (number(signature), number(&self.block(message)))
        else {
            return false;
        };
        if signature.len() != self.length || signature_number >= *modulus {
            return false;
        }
        let signature = BoxedMontyForm::new(signature_number, &self.modulus);
        let bits = self.exponent.bits();
        let found = signature.pow_bounded_exp(&self.exponent, bits).retrieve();
        found == expected
    }

    fn block(&self, message: &[u8]) -> Vec<u8> {
        let hash = Sha256::digest(message);
        let padding = self.length - 3 - SHA256_FOLLOWS.len() - hash.len();
        let mut block = vec![0, 1];
        block.resize(2 + padding, 0xff);
        block.push(0);
        block.extend(SHA256_FOLLOWS);
        block.extend(hash);
        block
    }
}

fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

#[cfg(test)]
pub mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

    use super::*;

    /// The key of RFC 7515, A.2.1.
    pub const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddx\
        HmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs\
        D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSH\
        SXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV\
        MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8\
        NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    const RSA_SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7\
        AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4\
        BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K\
        0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqv\
        hJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrB\
        p0igcN_IoypGlUPQGe77Rw";
    const RSA_SIGNED: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQo\
        gImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    /// RFC 8037, A.1 and A.4.
    pub const ED_X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    const ED_SIGNED: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    const ED_SIGNATURE: &str = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt\
        9g7sVvpAr_MuM0KAg";

    pub fn bytes(text: &str) -> Vec<u8> {
        BASE64.decode(text).expect("base64url")
    }

    fn rsa() -> PublicKey {
        PublicKey::rsa(&bytes(RSA_N), &[1, 0, 1]).expect("a key")
    }

    #[test]
    fn the_signatures_of_the_standards_are_good_and_no_bit_of_them_may_change() {
        let ed = PublicKey::ed25519(&bytes(ED_X)).expect("a key");
        for (key, signed, signature) in
            [(rsa(), RSA_SIGNED, RSA_SIGNATURE), (ed, ED_SIGNED, ED_SIGNATURE)]
        {
            let (signed, signature) = (signed.as_bytes(), bytes(signature));
            assert!(key.has_signed(signed, &signature));
            assert!(!key.has_signed(&signed[1..], &signature));
            for place in 0..signature.len() {
                let mut other = signature.clone();
                other[place] ^= 1;
                assert!(!key.has_signed(signed, &other), "byte {place}");
            }
            for wrong in [&[][..], &[0], &signature[1..], &[&[0], &signature[..]].concat()] {
                assert!(!key.has_signed(signed, wrong), "{} bytes", wrong.len());
            }
        }
    }

    /// A signature plus the modulus is the same number to the key, and would be a second signature
    /// of one message.
    #[test]
    fn a_signature_is_smaller_than_its_modulus() {
        let modulus = bytes(RSA_N);
        let signature = BoxedUint::from_be_slice_vartime(&bytes(RSA_SIGNATURE));
        let more = signature.wrapping_add(BoxedUint::from_be_slice_vartime(&modulus));
        let more = more.to_be_bytes();
        assert!(!rsa().has_signed(RSA_SIGNED.as_bytes(), &more));
        assert!(!rsa().has_signed(RSA_SIGNED.as_bytes(), &modulus));
        assert!(!rsa().has_signed(RSA_SIGNED.as_bytes(), &[0; 256]));
        assert!(!rsa().has_signed(RSA_SIGNED.as_bytes(), &[0xff; 256]));
    }

    #[test]
    fn a_weak_key_is_refused() {
        let modulus = bytes(RSA_N);
        for exponent in [&[][..], &[0], &[1], &[2], &[0, 1], &[1, 0, 0, 0, 1]] {
            assert!(PublicKey::rsa(&modulus, exponent).is_none(), "{exponent:?}");
        }
        assert!(PublicKey::rsa(&modulus[1..], &[1, 0, 1]).is_none(), "2040 bits");
        assert!(PublicKey::rsa(&[0xff; 1025], &[1, 0, 1]).is_none(), "8200 bits");
        let mut even = modulus.clone();
        even[255] ^= 1;
        assert!(PublicKey::rsa(&even, &[1, 0, 1]).is_none());
        let mut identity = [0; 32];
        identity[0] = 1;
        for weak in [&[0; 32][..], &identity, &[1; 31]] {
            assert!(PublicKey::ed25519(weak).is_none(), "{weak:?}");
        }
    }
}
