package forward

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// protocol is the version of the messages between hosts. Since 2, each says of which cluster its sender is, and for whom it is.
const protocol = "2"

const (
	headerProtocol  = "Kv3fs-Forward"
	headerHost      = "Kv3fs-Host"    // who sends the request, or the answer
	headerCluster   = "Kv3fs-Cluster" // of that host
	headerVersion   = "Kv3fs-Version" // of its kv3fs
	headerTo        = "Kv3fs-To"      // for whom a request is
	headerClient    = "Kv3fs-Client"
	headerNamespace = "Kv3fs-Namespace"
	headerRefused   = "Kv3fs-Refused" // in an answer: no host of this cluster should have sent the request
)

// Identity is what a host says of itself in all requests and answers.
type Identity struct {
	Host    string
	Cluster string // other clusters' hosts have another
	Version string // of kv3fs
}

func (i Identity) sign(h http.Header) {
	h.Set(headerProtocol, protocol)
	h.Set(headerHost, i.Host)
	h.Set(headerCluster, i.Cluster)
	h.Set(headerVersion, i.Version)
}

// pingPath asks whether a host leads.
const pingPath = "/forward/ping"

// visiblePath asks what a host reads of a file that the asking one has just written.
const visiblePath = "/forward/visible"

// maxNameBytes bounds what a peer may say of itself and of its client.
const maxNameBytes = 256

// hasToken reports whether a request shows a token. It takes the same time whatever is shown.
func hasToken(r *http.Request, token string) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && ok
}
