package httpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// This file has the routes of the command line, below /admin/v1: stat, list, evict,
// clear, forget, store.

const adminPrefix = "/admin/v1/"

// maxAdminBytes bounds the body of an admin request.
const maxAdminBytes = 64 << 10

// listBytes is about what the largest answer to list takes.
const listBytes = 48 << 20

// maxListed bounds the keys of one answer to list.
const maxListed = 10000

// AdminRequest is the body of list, evict, clear and forget.
type AdminRequest struct {
	Space pageservice.Space `json:"space"`
	After string            `json:"after,omitempty"` // list: the last key received so far
	Limit int               `json:"limit,omitempty"` // list: how many keys at most
	Keys  int               `json:"keys,omitempty"`  // evict: how many at most
	Rank  *int              `json:"rank,omitempty"`  // forget
}

// StatAnswer is the answer of stat.
type StatAnswer struct {
	Spaces []pageservice.SpaceState `json:"spaces"`
}

// ListAnswer is the answer of list.
type ListAnswer struct {
	Entries []pageservice.Entry `json:"entries"`
}

// EvictAnswer is the answer of evict.
type EvictAnswer struct {
	Evicted int `json:"evicted"`
}

// adminRoute is one kind of request of the command line.
type adminRoute struct {
	method string
	do     func(*Server, context.Context, *index.Index, AdminRequest) (any, error)
	once   bool // see route
	memory int64
}

func adminRoutes() map[string]*adminRoute {
	return map[string]*adminRoute{
		"stat":   {method: http.MethodGet, do: (*Server).adminStat},
		"list":   {method: http.MethodPost, do: (*Server).adminList, memory: listBytes},
		"evict":  {method: http.MethodPost, do: (*Server).adminEvict, once: true},
		"clear":  {method: http.MethodPost, do: (*Server).adminClear, once: true},
		"forget": {method: http.MethodPost, do: (*Server).adminForget, once: true},
	}
}

// admin answers a request of the command line, and reports whether it is one. An address
// that is bound to a namespace shows and changes only that one.
func (s *Server) admin(w http.ResponseWriter, r *http.Request, bound string) bool {
	name, ok := strings.CutPrefix(r.URL.Path, adminPrefix)
	if !ok {
		return false
	}
	to, method := s.routes.admin[name], http.MethodGet
	switch {
	case name == "store":
	case to == nil:
		refuse(w, refusal{http.StatusNotFound, "Not Found"})
		return true
	default:
		method = to.method
	}
	if r.Method != method {
		w.Header().Set("Allow", method)
		refuse(w, refusal{http.StatusMethodNotAllowed, "Method Not Allowed"})
		return true
	}
	who := operator{client: clientOf(r)}
	if _, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && !isForwarded(r) {
		who.from = r.RemoteAddr
	}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), operatorKey{}, who), s.limits.Work)
	defer cancel()
	if name == "store" { // this host's
		s.sendAnswer(w, s.StoreState(ctx), nil)
		return true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBytes))
	if err != nil {
		refuse(w, refusal{http.StatusBadRequest, err.Error()})
		return true
	}
	if to.memory > 0 {
		from, memory := clientOf(r), min(to.memory, s.limits.LargeBytes)
		if s.large.await(ctx, from, memory) != nil {
			refuse(w, refusal{http.StatusServiceUnavailable, "too many large requests at once"})
			return true
		}
		defer s.large.give(from, memory)
	}
	source := s.source.Load()
	if source.Leader != nil && !isForwarded(r) {
		a, err := s.forward(ctx, r, source, Forwarded{Bound: bound, Body: body, Again: !to.once})
		if err != nil {
			refuse(w, s.translate(err))
		} else {
			relay(w, a)
		}
		return true
	}
	answer, err := s.adminAnswer(ctx, source, to, bound, body)
	if err == nil {
		err = source.check()
	}
	s.sendAnswer(w, answer, err)
	return true
}

// adminAnswer executes a request of the command line on this host's index.
func (s *Server) adminAnswer(ctx context.Context, source *Source, to *adminRoute, bound string, body []byte) (any, error) {
	x, err := source.index()
	if err != nil {
		return nil, err
	}
	var query AdminRequest
	if to.method == http.MethodPost {
		in := json.NewDecoder(bytes.NewReader(body))
		in.DisallowUnknownFields()
		if err := in.Decode(&query); err != nil && !errors.Is(err, io.EOF) {
			return nil, refusal{http.StatusBadRequest, err.Error()}
		}
		if bound != "" && query.Space.Namespace != bound {
			return nil, refusal{http.StatusForbidden, fmt.Sprintf("this address serves only namespace %q, not %q; use the service's address without a namespace", bound, label(query.Space.Namespace))}
		}
	}
	answer, err := to.do(s, ctx, x, query)
	if all, ok := answer.(StatAnswer); ok && bound != "" {
		foreign := func(s pageservice.SpaceState) bool { return s.Space.Namespace != bound }
		answer = StatAnswer{slices.DeleteFunc(slices.Clone(all.Spaces), foreign)}
	}
	return answer, err
}

// sendAnswer sends an answer to the command line, or an error.
func (s *Server) sendAnswer(w http.ResponseWriter, answer any, err error) {
	var b []byte
	if err == nil {
		b, err = json.Marshal(answer)
	}
	if err != nil {
		refuse(w, s.translate(err))
		return
	}
	send(w, http.StatusOK, b)
}

func (s *Server) adminStat(ctx context.Context, _ *index.Index, _ AdminRequest) (any, error) {
	spaces, err := s.stats.since(ctx, time.Now())
	if spaces == nil {
		spaces = []pageservice.SpaceState{} // an empty list, not null
	}
	return StatAnswer{spaces}, err
}

func (s *Server) adminList(ctx context.Context, x *index.Index, q AdminRequest) (any, error) {
	if q.Limit <= 0 || q.Limit > maxListed {
		return nil, refusal{http.StatusBadRequest, "limit must be 1 to " + strconv.Itoa(maxListed)}
	}
	if err := s.wantSpace(ctx, q.Space); err != nil {
		return nil, err
	}
	entries, err := x.List(ctx, q.Space, q.After, q.Limit)
	if entries == nil {
		entries = []pageservice.Entry{}
	}
	return ListAnswer{entries}, err
}

func (s *Server) adminEvict(ctx context.Context, x *index.Index, q AdminRequest) (any, error) {
	if q.Keys <= 0 {
		return nil, refusal{http.StatusBadRequest, "keys must be at least 1"}
	}
	if err := s.wantSpace(ctx, q.Space); err != nil {
		return nil, err
	}
	n, err := x.Evict(ctx, q.Space, q.Keys)
	if err == nil {
		s.writes.worked()
	}
	s.audited(ctx, "pages evict", q.Space, err, "keys", n)
	return EvictAnswer{n}, err
}

func (s *Server) adminClear(ctx context.Context, x *index.Index, q AdminRequest) (any, error) {
	if err := s.wantSpace(ctx, q.Space); err != nil {
		return nil, err
	}
	err := x.Clear(ctx, q.Space)
	if err == nil {
		s.writes.worked()
	}
	s.audited(ctx, "pages clear", q.Space, err)
	return struct{}{}, err
}

// adminForget forgets a rank that will not come back.
func (s *Server) adminForget(ctx context.Context, x *index.Index, q AdminRequest) (any, error) {
	if q.Rank == nil {
		return nil, refusal{http.StatusBadRequest, "rank is missing"}
	}
	err := x.Forget(ctx, q.Space, *q.Rank)
	s.audited(ctx, "pages forget-rank", q.Space, err, "rank", *q.Rank)
	switch {
	case errors.Is(err, pageservice.ErrUnknownRank):
		return nil, refusal{http.StatusNotFound, fmt.Sprintf("there is no rank %d of set %q in namespace %q", *q.Rank, q.Space.Set, label(q.Space.Namespace))}
	case err == nil:
		s.writes.worked()
	}
	return struct{}{}, err
}

// audited logs what an operator did, or tried to do.
func (s *Server) audited(ctx context.Context, call string, at pageservice.Space, err error, attrs ...any) {
	attrs = append([]any{"call", call, "namespace", at.Namespace, "set", at.Set}, attrs...)
	if who, ok := ctx.Value(operatorKey{}).(operator); ok {
		attrs = append(attrs, "client", who.client.String())
		if who.from != "" {
			attrs = append(attrs, "address", who.from)
		}
	}
	if err != nil {
		attrs = append(attrs, "err", err)
	}
	s.audit.Info("an operator's command", attrs...)
}

// operator is who has sent a request of the command line.
type operator struct {
	client client
	from   string // HOST:PORT; "": a socket with a path, or another host of the service
}

// operatorKey is the key of the operator in the context of a request.
type operatorKey struct{}

// wantSpace refuses a space that does not exist, so that a misspelt name is an error.
func (s *Server) wantSpace(ctx context.Context, want pageservice.Space) error {
	now := time.Now()
	for _, since := range []time.Time{now.Add(-statAge), now} { // the space may be very new
		spaces, err := s.stats.since(ctx, since)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(spaces, func(there pageservice.SpaceState) bool { return there.Space == want }) {
			return nil
		}
	}
	return refusal{http.StatusNotFound, "there are no keys of set " + strconv.Quote(want.Set) + " in namespace " + strconv.Quote(label(want.Namespace))}
}
