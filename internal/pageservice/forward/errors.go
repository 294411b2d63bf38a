package forward

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// refusal is an error that stays until somebody changes something.
type refusal struct{ error }

func isRefusal(err error) bool {
	var r refusal
	return errors.As(err, &r)
}

// isDial reports that there was no connection, so that nobody got the request.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// explain adds to an error of a connection what the user should check.
func explain(to Target, err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var op *net.OpError
	var record tls.RecordHeaderError
	at := fmt.Sprintf("%s at %s", to.Host, to.Address)
	switch {
	case errors.As(err, &unknown):
		return refusal{fmt.Errorf("%s shows a certificate of another authority than --pages-peer-ca: %w", at, err)}
	case errors.As(err, &name):
		return refusal{fmt.Errorf("%s shows a certificate for other names: each host's --pages-peer-cert must have the name or address of its --pages-peer-listen: %w", at, err)}
	case errors.As(err, &op) && op.Op == "remote error": // an alert of TLS
		return refusal{fmt.Errorf("%s does not accept this host's certificate: --pages-peer-cert must be signed by its --pages-peer-ca: %w", at, err)}
	case errors.As(err, &record):
		return refusal{fmt.Errorf("%s speaks no TLS: --pages-peer-ca must be given on all hosts or on none", at)}
	}
	return fmt.Errorf("%s: %w", at, err)
}

// strange returns what is wrong with an answer that is not one to a request.
func (c *Client) strange(to Target, w *http.Response, body []byte) error {
	var said struct{ Detail string }
	theirs, refused := w.Header.Get(headerProtocol), w.Header.Get(headerRefused) != ""
	if theirs != "" && (refused || theirs != protocol) {
		_ = json.Unmarshal(body, &said) // what is not ours has no detail
	}
	at := fmt.Sprintf("%s at %s", to.Host, to.Address)
	switch {
	case theirs == "":
		return refusal{fmt.Errorf("%s does not answer as a kv3fs does, but with %s: its --pages-peer-listen must be reachable there, with TLS on both hosts or on none", at, w.Status)}
	case w.StatusCode == http.StatusUnauthorized:
		return refusal{fmt.Errorf("%s refuses this host's token: --pages-peer-token-file must name a file with the same token on all hosts", at)}
	case theirs != protocol:
		return refusal{fmt.Errorf("%s is kv3fs %q, which takes requests in another form (%q): let all hosts be of one version; it says: %s", at, short(w.Header.Get(headerVersion)), short(theirs), short(said.Detail))}
	case w.ContentLength > maxAnswerBytes:
		return fmt.Errorf("%s: an answer of %d bytes", at, w.ContentLength)
	case refused:
		return refusal{fmt.Errorf("%s refuses this host's requests: %s", at, short(said.Detail))}
	case w.Header.Get(headerCluster) != c.Cluster, w.Header.Get(headerHost) != to.Host:
		return refusal{fmt.Errorf("at %s answers host %q of the cluster %q: does another cluster have the address of %s?", to.Address, short(w.Header.Get(headerHost)), short(w.Header.Get(headerCluster)), to.Host)}
	}
	return nil
}
