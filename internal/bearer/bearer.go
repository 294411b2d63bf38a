// Package bearer checks the secret that clients of an HTTP server must present.
package bearer

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Token is the digest of a secret; nil: there is none, and every client is served. Comparing digests takes
// the same time whatever the content and the length of a guess.
type Token *[sha256.Size]byte

// NewToken returns the token of a secret; "": nil.
func NewToken(secret string) Token {
	if secret == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(secret))
	return &sum
}

// Allows looks for the token as a bearer token, or as the password of Basic with any user name. The latter is
// what HTTP libraries make of http://kv3fs:TOKEN@host:18000 or of a .netrc; some engines have no other way.
func Allows(t Token, r *http.Request) bool {
	if t == nil {
		return true
	}
	scheme, given, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") { // RFC 9110: in any case
		if _, given, ok = r.BasicAuth(); !ok {
			return false
		}
	}
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], t[:]) == 1
}
