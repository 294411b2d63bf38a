package httpserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// token is the digest of the secret that clients must present; nil: none. Comparing
// digests takes the same time whatever the content and the length of a guess.
type token *[sha256.Size]byte

func newToken(secret string) token {
	if secret == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(secret))
	return &sum
}

// allows looks for the token as a bearer token, or as the password of Basic with any user
// name. The latter is what the engines' HTTP library makes of
// http://kv3fs:TOKEN@host:18000 or of a .netrc; engines have no other way.
func allows(t token, r *http.Request) bool {
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
