package forward

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// protocol is the version of the messages between hosts.
const protocol = "1"

const (
	headerProtocol  = "Kv3fs-Forward"
	headerHost      = "Kv3fs-Host"
	headerVersion   = "Kv3fs-Version" // of kv3fs
	headerClient    = "Kv3fs-Client"
	headerNamespace = "Kv3fs-Namespace"
)

// pingPath asks whether a host leads.
const pingPath = "/forward/ping"

// maxNameBytes bounds what a peer may say of itself and of its client.
const maxNameBytes = 256

// hasToken reports whether a request shows a token. It takes the same time whatever is shown.
func hasToken(r *http.Request, token string) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && ok
}
