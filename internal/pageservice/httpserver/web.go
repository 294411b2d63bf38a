package httpserver

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// A browser lets any web page send requests to loopback: with Origin in its head, and
// without another question only if the body is of a type that forms can send. A page
// whose name was made to resolve to this host (DNS rebinding) is of the same origin, but
// names itself in Host. Engines send JSON and no Origin.

// formTypes are the types that a form sends.
var formTypes = [...]string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"}

// fromWebPage refuses a request that may change something and that a foreign web page may
// have sent.
func (s *Server) fromWebPage(r *http.Request) (refusal, bool) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return refusal{}, false
	}
	if !s.isOurs(r) {
		return refusal{http.StatusForbidden, "the request is for host " + r.Host + ", which is not known to be this one; if it is, start the service with --pages-host"}, true
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || u.Host != r.Host {
			return refusal{http.StatusForbidden, "the request comes from a web page of " + origin}, true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return refusal{http.StatusForbidden, "the request comes from a foreign web page"}, true
	}
	given := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(given)
	if given != "" && (err != nil || slices.Contains(formTypes[:], kind)) {
		return refusal{http.StatusUnsupportedMediaType, "the body is " + given + "; want Content-Type: application/json"}, true
	}
	return refusal{}, false
}

// isOurs reports whether a request names this host. Web pages reach no sockets with a
// path, and have no token. An address that is no name cannot be made to resolve.
func (s *Server) isOurs(r *http.Request) bool {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" || s.token != nil {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "" {
		return true
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || slices.Contains(s.hosts, host)
}
