package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Forwarded is a request that another host is to answer: the leader. Its body was read within the
// limits of this host, and not parsed.
type Forwarded struct {
	Method string
	Path   string // with the namespace, if the listener is not bound to one
	Bound  string // the namespace that the listener is bound to
	// Client says which client of this host sent the request, so that the leader can be fair
	// to each.
	Client string
	Body   []byte
	// Again: the leader, or the next one, may execute it twice.
	Again bool
	// Sending, if it is not nil, is called right before the request is sent, each time. After an error
	// it is not sent, and that is Forward's.
	Sending func() error
}

// Answer is what the leader answered. A zero Status: there is no answer.
type Answer struct {
	Status int
	Body   []byte
}

// Forwarder has the leader answer requests. An error means that there is no answer; its text is for
// the client.
type Forwarder interface {
	Forward(context.Context, Forwarded) (Answer, error)
}

// peerKey is the key, in the context of a request, that says that another host has forwarded it.
type peerKey struct{}

func isForwarded(r *http.Request) bool { return r.Context().Value(peerKey{}) != nil }

// ServePeer answers a request that another host has forwarded. The caller has made sure that it is
// one of those that may; host is its name. This host answers it from its own index or not at all.
func (s *Server) ServePeer(w http.ResponseWriter, r *http.Request, bound, host, of string) {
	if bound != "" && !ValidNamespace(bound) {
		refuse(w, refusal{http.StatusBadRequest, fmt.Sprintf("namespace %q", bound)})
		return
	}
	ctx := context.WithValue(r.Context(), peerKey{}, true)
	ctx = context.WithValue(ctx, clientKey{}, client{peer: host + " " + of})
	r = r.WithContext(ctx)
	if r.URL.Path == "/readyz" {
		s.readyz(w, r)
		return
	}
	s.route(w, r, bound)
}

// forward has the leader answer a request whose body was read.
func (s *Server) forward(ctx context.Context, r *http.Request, from *Source, q Forwarded) (Answer, error) {
	q.Method, q.Path, q.Client = r.Method, r.URL.Path, clientOf(r).String()
	a, err := from.Leader.Forward(ctx, q)
	var known refusal
	if err != nil && !errors.As(err, &known) {
		err = refusal{http.StatusServiceUnavailable, err.Error()}
	}
	return a, err
}

// relay sends an answer of the leader.
func relay(w http.ResponseWriter, a Answer) {
	switch {
	case a.Status == http.StatusNoContent:
		w.WriteHeader(http.StatusNoContent)
	case a.Status/100 == 2:
		send(w, a.Status, a.Body)
	default:
		sendRefusal(w, a.Status, []byte(strings.TrimSuffix(string(a.Body), "}")))
	}
}

// String names a client for another host.
func (c client) String() string {
	switch {
	case c.peer != "":
		return c.peer
	case c.isUser:
		return fmt.Sprintf("uid %d", c.uid)
	}
	return c.addr.String()
}

// Leads reports whether this host answers from an index of its own.
func (s *Server) Leads() bool { return s.source.Load().Index != nil }
