//! Decides which requests are answered.
//!
//! A page of another site that the user visits can send requests to this server, and with DNS
//! rebinding even read the answers. So the `Host` must be one that this server is known by, and a
//! request that changes something must come from a page of this server. A server that other
//! machines or users can reach also wants a token, which the first visit turns into a cookie.

use hyper::header::{COOKIE, HOST, HeaderMap, ORIGIN};
use std::net::IpAddr;

/// The rules for requests.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    port: u16,
    /// Whether addresses other than those of this machine are served.
    public: bool,
    /// Further names of this server.
    names: Vec<String>,
    token: Option<String>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The `Host` is not this server.
    Host,
    /// The request comes from a page of another site.
    Origin,
    /// The token is missing or wrong.
    Token,
}

impl Refusal {
    /// Returns what the answer says.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Refusal::Host => "this server does not know that host name; add it with --allow-host",
            Refusal::Origin => "the request comes from a page of another site",
            Refusal::Token => "open the link that `tensorpack dashboard` printed: it has the token",
        }
    }
}

impl Guard {
    /// Creates rules for a server at a port.
    pub(crate) fn new(port: u16, public: bool, names: Vec<String>, token: Option<String>) -> Guard {
        Guard { port, public, names, token }
    }

    /// Checks `Host`, and `Origin` where there is one. A request that changes something must have
    /// one.
    pub(crate) fn check_site(&self, headers: &HeaderMap, changes: bool) -> Result<(), Refusal> {
        let host = headers.get(HOST).and_then(|h| h.to_str().ok()).ok_or(Refusal::Host)?;
        if headers.get_all(HOST).iter().count() != 1 || !self.is_own(host) {
            return Err(Refusal::Host);
        }
        let cross = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
        match headers.get(ORIGIN).map(|o| o.to_str().unwrap_or_default()) {
            None if changes => Err(Refusal::Origin),
            None => Ok(()),
            Some(origin) if origin == format!("http://{host}") && !cross => Ok(()),
            Some(_) => Err(Refusal::Origin),
        }
    }

    /// Returns whether a `Host` is a name of this server. Addresses are safe: DNS rebinding needs a
    /// name.
    fn is_own(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port),
            _ => (host, "80"),
        };
        if port != self.port.to_string() {
            return false;
        }
        let name = name.to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(&name);
        match address.parse::<IpAddr>() {
            Ok(address) => self.public || address.is_loopback(),
            Err(_) => name == "localhost" || self.names.iter().any(|n| n.eq_ignore_ascii_case(&name)),
        }
    }

    /// Checks the cookie, if this server has a token.
    pub(crate) fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let name = self.cookie_name();
        let cookies = headers.get_all(COOKIE).iter().filter_map(|c| c.to_str().ok());
        let mut values = cookies
            .flat_map(|c| c.split(';'))
            .filter_map(|c| c.trim().split_once('='))
            .filter(|(n, _)| *n == name)
            .map(|(_, value)| value);
        if values.any(|value| same(value, token)) { Ok(()) } else { Err(Refusal::Token) }
    }

    /// Returns the cookie to set if `token` is right.
    pub(crate) fn cookie(&self, token: &str) -> Option<String> {
        let expected = self.token.as_ref()?;
        let name = self.cookie_name();
        same(token, expected).then(|| format!("{name}={expected}; HttpOnly; SameSite=Strict; Path=/"))
    }

    /// Browsers send cookies to all ports of a host, so each port has its own.
    fn cookie_name(&self) -> String {
        format!("tensorpack_dashboard_{}", self.port)
    }
}

/// Compares in a time that does not depend on where the texts differ.
fn same(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |d, (a, b)| std::hint::black_box(d | (a ^ b)));
    a.len() == b.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn only_own_host_names_are_answered() {
        let local = Guard::new(6007, false, vec![], None);
        let public = Guard::new(6007, true, vec!["gpu1".into()], None);
        let ok = |guard: &Guard, host: &str| guard.check_site(&headers(&[("host", host)]), false).is_ok();
        for host in ["localhost:6007", "127.0.0.1:6007", "[::1]:6007", "LOCALHOST:6007"] {
            assert!(ok(&local, host) && ok(&public, host), "{host}");
        }
        for host in
            ["evil.example:6007", "localhost", "localhost:80", "localhost.evil.example:6007", "", ":6007"]
        {
            assert!(!ok(&local, host) && !ok(&public, host), "{host}");
        }
        assert!(!ok(&local, "10.0.0.5:6007") && ok(&public, "10.0.0.5:6007") && ok(&public, "gpu1:6007"));
        let two = headers(&[("host", "localhost:6007"), ("host", "evil.example:6007")]);
        assert_eq!(local.check_site(&two, false), Err(Refusal::Host));
        assert_eq!(local.check_site(&HeaderMap::new(), false), Err(Refusal::Host));
    }

    #[test]
    fn changes_need_the_origin_of_this_page() {
        let guard = Guard::new(6007, false, vec![], None);
        let check = |origin: Option<&str>, changes| {
            let mut map = headers(&[("host", "localhost:6007")]);
            origin.map(|o| map.append("origin", o.parse().unwrap()));
            guard.check_site(&map, changes)
        };
        assert_eq!(check(Some("http://localhost:6007"), true), Ok(()));
        assert_eq!(check(None, false), Ok(()));
        assert_eq!(check(None, true), Err(Refusal::Origin));
        for origin in ["http://127.0.0.1:6007", "null", "http://localhost:8080", "https://localhost:6007", ""]
        {
            assert_eq!(check(Some(origin), true), Err(Refusal::Origin), "{origin}");
            assert_eq!(check(Some(origin), false), Err(Refusal::Origin), "{origin}");
        }
    }

    #[test]
    fn a_token_becomes_a_cookie() {
        let guard = Guard::new(6007, true, vec![], Some("secret".into()));
        assert_eq!(guard.cookie("secrex"), None);
        assert_eq!(guard.cookie("secret2"), None);
        assert_eq!(guard.cookie(""), None);
        let cookie = guard.cookie("secret").unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        let pair = cookie.split(';').next().unwrap().to_string();
        let sent = format!("other=1; {pair}");
        assert_eq!(guard.check_token(&headers(&[("cookie", &sent)])), Ok(()));
        assert_eq!(
            guard.check_token(&headers(&[("cookie", "tensorpack_dashboard_6008=secret")])),
            Err(Refusal::Token)
        );
        assert_eq!(guard.check_token(&HeaderMap::new()), Err(Refusal::Token));
        assert_eq!(Guard::new(1, true, vec![], None).check_token(&HeaderMap::new()), Ok(()));
    }
}
