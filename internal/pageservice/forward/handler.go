package forward

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

// Server answers requests that other hosts forward. httpserver.Server is one.
type Server interface {
	// ServePeer answers a request of a client of another host from this host's own index, or with 421 if
	// this host does not lead.
	ServePeer(w http.ResponseWriter, r *http.Request, bound, host, client string)
	// Leads reports whether this host answers from an index of its own. It does not wait.
	Leads() bool
}

// HandlerOptions are the options of NewHandler.
type HandlerOptions struct {
	Identity
	Token string // that hosts must show; "": the listener's TLS has checked them
	// Visible answers another host's question about a file of that host's; nil: this kv3fs does not read files.
	Visible func(ctx context.Context, host string, question []byte) (answer []byte, err error)
	Log     *slog.Logger
}

// NewHandler returns the handler of the listener for other hosts.
func NewHandler(s Server, o HandlerOptions) http.Handler {
	return &handler{server: s, HandlerOptions: o}
}

type handler struct {
	server Server
	HandlerOptions
	pace logpace.Pace
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.Identity.sign(w.Header())
	host, client, cluster, to := r.Header.Get(headerHost), r.Header.Get(headerClient), r.Header.Get(headerCluster), r.Header.Get(headerTo)
	switch theirs := r.Header.Get(headerProtocol); {
	case h.Token != "" && !hasToken(r, h.Token):
		h.refuse(w, r, http.StatusUnauthorized, "the token between hosts is missing or wrong")
	case theirs == "":
		h.refuse(w, r, http.StatusBadRequest, "this address is for other hosts' kv3fs; engines use their own host's page service")
	case theirs != protocol:
		h.refuse(w, r, http.StatusBadRequest, fmt.Sprintf("kv3fs %q there forwards requests in form %q, and kv3fs %s here takes form %s: let both be of one version", short(r.Header.Get(headerVersion)), short(theirs), h.Version, protocol))
	case host == "" || len(host) > maxNameBytes || len(client) > maxNameBytes:
		h.refuse(w, r, http.StatusBadRequest, "the host that forwards does not say who it is")
	case cluster != h.Cluster:
		h.refuse(w, r, http.StatusMisdirectedRequest, fmt.Sprintf("this host, %s, is of the cluster %q, and that one of %q", h.Host, h.Cluster, short(cluster)))
	case host == h.Host:
		h.refuse(w, r, http.StatusMisdirectedRequest, fmt.Sprintf("two hosts have the identity %q: give each another --identity", h.Host))
	case to != h.Host: // its address is this one's now
		h.refuse(w, r, http.StatusMisdirectedRequest, fmt.Sprintf("this is host %s, and not %q", h.Host, short(to)))
	case r.URL.Path == pingPath:
		if !h.server.Leads() {
			w.WriteHeader(http.StatusMisdirectedRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == visiblePath && h.Visible != nil:
		h.visible(w, r, host)
	default:
		h.server.ServePeer(w, r, r.Header.Get(headerNamespace), host, client)
	}
}

// visible answers a question of Client.Visible.
func (h *handler) visible(w http.ResponseWriter, r *http.Request, host string) {
	const most = 4096 // bytes of a question
	question, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err == nil {
		question, err = h.Visible(r.Context(), host, question)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(question) // fails where the peer is gone
}

// refuse answers a request that no host of the cluster would send, and logs it: its sender may show
// its users no more than that their requests fail.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	from := r.RemoteAddr
	if at, err := netip.ParseAddrPort(from); err == nil {
		from = at.Addr().String()
	}
	if more, now := h.pace.Log(from + " " + strconv.Itoa(status)); now {
		h.Log.Warn("refused another host of the page service", "from", from, "host", short(r.Header.Get(headerHost)), "why", why, "more", more)
	}
	b, _ := json.Marshal(map[string]string{"detail": why}) // of strings only
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.Header().Set(headerRefused, "1")
	w.WriteHeader(status)
	_, _ = w.Write(b) // fails where the peer is gone
}

// short bounds what a stranger may have logged.
func short(s string) string { return s[:min(len(s), maxNameBytes)] }
