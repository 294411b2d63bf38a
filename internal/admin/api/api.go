package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "embed"

	"github.com/kv3fs/kv3fs/internal/exactjson"
)

// Prefix is that of all paths.
const Prefix = "/api/v1/"

// What clients can take.
const (
	mostRequests = 16
	// askTime is how long an answer may take to be made, and sendTime how long to be read.
	askTime   = 5 * time.Second
	sendTime  = 30 * time.Second
	mostBytes = 64 << 10 // of a request
)

// Source is what a daemon knows. Its methods may be called concurrently, and return soon after the end of their contexts.
// Errors are those of Refusal, or of what was asked for.
type Source interface {
	Status(ctx context.Context) (Status, error)
	// History answers for a window the steps after one with a number, or all where it has none with that number.
	History(window string, after int64) (History, error)
	Usage(ctx context.Context, q UsageQuery) (Usage, error)
	Hits() Hits
	Keeper(ctx context.Context) (Keeping, error)
	Curve() Curve
	Clients(ctx context.Context, most int) Clients
	Pages(ctx context.Context) (Pages, error)
	Hosts(ctx context.Context) (Hosts, error)
	// Findings returns what the doctor found last, and has it look again where that is old. It waits for the first look until ctx ends.
	Findings(ctx context.Context) Findings
}

// Tail keeps the last lines of the log.
type Tail interface {
	// Lines returns the last lines after a number, most of them at most, and how many after that number it has dropped.
	Lines(after uint64, most int) (lines []LogLine, dropped uint64)
}

// Leveler has the level of the log.
type Leveler interface {
	Level() string
	// SetLevel refuses what is no level.
	SetLevel(level string) error
}

// UsageQuery says what to tell of a directory.
type UsageQuery struct {
	Path  string // below the data directory
	Depth int    // levels below it
	Most  int    // directories, and engines with their models, at most
}

// Options are the options of New.
type Options struct {
	Source Source
	Log    Tail    // nil: it is not kept
	Level  Leveler // nil: it cannot be changed
	// Unchanged says why a client may change nothing now; "": it may. nil: it always may.
	Unchanged func() string
	// Changed is told what a client has changed, by what a call is named and as attributes of a log; nil: nobody is.
	Changed func(r *http.Request, call string, attrs ...any)
}

// Handler answers below Prefix.
type Handler struct {
	Options
	routes map[string]map[string]answer // by path and method
	slots  chan struct{}
}

// answer makes an answer.
type answer func(r *request) (any, error)

// request is what an answer may need.
type request struct {
	ctx   context.Context // of the request, to whose answer all of this is handed
	query url.Values
	body  []byte
	from  *http.Request
}

// New returns a handler.
func New(o Options) *Handler {
	h := &Handler{Options: o, slots: make(chan struct{}, mostRequests)}
	h.routes = map[string]map[string]answer{
		"status":       {http.MethodGet: plain(func(r *request) (any, error) { return o.Source.Status(r.ctx) })},
		"history":      {http.MethodGet: h.history},
		"usage":        {http.MethodGet: h.usage},
		"hits":         {http.MethodGet: plain(func(*request) (any, error) { return o.Source.Hits(), nil })},
		"keeper":       {http.MethodGet: plain(func(r *request) (any, error) { return o.Source.Keeper(r.ctx) })},
		"curve":        {http.MethodGet: plain(func(*request) (any, error) { return o.Source.Curve(), nil })},
		"clients":      {http.MethodGet: h.clients},
		"pages":        {http.MethodGet: plain(func(r *request) (any, error) { return o.Source.Pages(r.ctx) })},
		"hosts":        {http.MethodGet: plain(func(r *request) (any, error) { return o.Source.Hosts(r.ctx) })},
		"findings":     {http.MethodGet: h.findings},
		"log":          {http.MethodGet: h.log},
		"log-level":    {http.MethodGet: plain(h.level), http.MethodPut: plain(h.setLevel)},
		"openapi.yaml": {http.MethodGet: plain(func(*request) (any, error) { return document(openAPI), nil })},
	}
	return h
}

// Refusal is an error with a cure and the status of HTTP.
type Refusal struct {
	Status int
	Failure
}

func (r Refusal) Error() string { return r.Failure.Error }

func refuse(status int, cure, format string, args ...any) Refusal {
	return Refusal{status, Failure{fmt.Sprintf(format, args...), cure}}
}

// document is an answer that is no JSON.
type document []byte

//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the description of what is served.
func OpenAPI() []byte { return slices.Clone(openAPI) }

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	made, err := h.make(w, r)
	body, media := []byte(nil), "application/json"
	if text, ok := made.(document); ok && err == nil {
		body, media = text, "application/yaml"
	} else if err == nil {
		body, err = Encode(made)
	}
	status := http.StatusOK
	if err != nil {
		var why Refusal
		if !errors.As(err, &why) {
			why = refuse(http.StatusInternalServerError, "look at the daemon's log", "%v", err)
			if errors.Is(err, context.DeadlineExceeded) {
				why = refuse(http.StatusServiceUnavailable, "look at /readyz; the data directory's disk may hang", "what was asked for did not answer within %v", askTime)
			}
		}
		status = why.Status
		body, _ = Encode(why.Failure) // two texts
	}
	head := w.Header()
	head.Set("Content-Type", media)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	head.Set("Content-Length", strconv.Itoa(len(body)))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sendTime)) // the server's own holds otherwise
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone sees it
}

// make makes the answer to a request. It holds one of few places meanwhile, and none while the answer is sent.
func (h *Handler) make(w http.ResponseWriter, r *http.Request) (any, error) {
	name, ok := strings.CutPrefix(r.URL.Path, Prefix)
	methods := h.routes[name]
	if !ok || methods == nil {
		return nil, refuse(http.StatusNotFound, "see "+Prefix+"openapi.yaml for what there is", "there is no %s", r.URL.Path)
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	do := methods[method]
	if do == nil {
		allowed := []string{http.MethodHead}
		for m := range methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return nil, refuse(http.StatusMethodNotAllowed, "use "+strings.Join(allowed, " or "), "%s does not know the method %s", r.URL.Path, r.Method)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "", "the query: %v", err)
	}
	var body []byte
	if method == http.MethodPut {
		if body, err = h.read(w, r); err != nil {
			return nil, err
		}
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return nil, refuse(http.StatusServiceUnavailable, "ask again in a moment, and less often", "%d requests at once are all that are answered", mostRequests)
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	return do(&request{ctx: ctx, query: query, body: body, from: r})
}

// read returns the body of a change that the client may make. A web page of another origin cannot send JSON without being
// asked for permission first, which nobody gives it.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if h.Unchanged != nil {
		if why := h.Unchanged(); why != "" {
			return nil, refuse(http.StatusForbidden, why, "nothing may be changed here")
		}
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, refuse(http.StatusUnsupportedMediaType, "send Content-Type: application/json", "the body is %q", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBytes))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "", "the body: %v", err)
	}
	return body, nil
}

// plain is for an answer that takes no parameters.
func plain(do answer) answer {
	return func(r *request) (any, error) {
		if err := r.only(); err != nil {
			return nil, err
		}
		return do(r)
	}
}

// only refuses parameters that are not known, or given twice.
func (r *request) only(known ...string) error {
	for name, values := range r.query {
		switch {
		case !slices.Contains(known, name):
			return refuse(http.StatusBadRequest, "see "+Prefix+"openapi.yaml", "there is no parameter %q", name)
		case len(values) > 1:
			return refuse(http.StatusBadRequest, "give it once", "the parameter %q is given %d times", name, len(values))
		}
	}
	return nil
}

// number returns a parameter, or what stands for it.
func (r *request) number(name string, otherwise, least, most uint64) (uint64, error) {
	if !r.query.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(r.query.Get(name), 10, 64)
	if err != nil || n < least || n > most {
		return 0, refuse(http.StatusBadRequest, fmt.Sprintf("give %d to %d", least, most), "the parameter %s is %q", name, r.query.Get(name))
	}
	return n, nil
}

// Windows of History.
const (
	Window10m = "10m"
	Window24h = "24h"
)

func (h *Handler) history(r *request) (any, error) {
	if err := r.only("window", "after"); err != nil {
		return nil, err
	}
	window := Window10m
	if r.query.Has("window") {
		window = r.query.Get("window")
	}
	if window != Window10m && window != Window24h {
		return nil, refuse(http.StatusBadRequest, "give "+Window10m+" or "+Window24h, "the parameter window is %q", window)
	}
	after, err := r.number("after", 0, 0, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	return h.Source.History(window, int64(after))
}

func (h *Handler) usage(r *request) (any, error) {
	const depth, mostDepth, most, mostMost = 2, 8, 200, 2000
	if err := r.only("path", "depth", "most"); err != nil {
		return nil, err
	}
	q := UsageQuery{Path: "."}
	if r.query.Has("path") {
		q.Path = r.query.Get("path")
	}
	d, err := r.number("depth", depth, 0, mostDepth)
	if err != nil {
		return nil, err
	}
	m, err := r.number("most", most, 1, mostMost)
	if err != nil {
		return nil, err
	}
	q.Depth, q.Most = int(d), int(m)
	return h.Source.Usage(r.ctx, q)
}

func (h *Handler) clients(r *request) (any, error) {
	const most, mostMost = 200, 1000
	if err := r.only("most"); err != nil {
		return nil, err
	}
	n, err := r.number("most", most, 1, mostMost)
	if err != nil {
		return nil, err
	}
	return h.Source.Clients(r.ctx, int(n)), nil
}

func (h *Handler) findings(r *request) (any, error) {
	if err := r.only("wait"); err != nil {
		return nil, err
	}
	seconds, err := r.number("wait", 0, 0, uint64(askTime/time.Second))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.ctx, time.Duration(seconds)*time.Second)
	defer cancel()
	return h.Source.Findings(ctx), nil
}

func (h *Handler) log(r *request) (any, error) {
	const most = 500
	if err := r.only("after", "most"); err != nil {
		return nil, err
	}
	after, err := r.number("after", 0, 0, 1<<63)
	if err != nil {
		return nil, err
	}
	n, err := r.number("most", most, 1, most)
	if err != nil {
		return nil, err
	}
	if h.Log == nil {
		return nil, refuse(http.StatusNotFound, "read the log where the daemon writes it", "this daemon does not keep its log")
	}
	l := Log{Lines: []LogLine{}, Next: after}
	var lines []LogLine
	if lines, l.Dropped = h.Log.Lines(after, int(n)); len(lines) > 0 {
		l.Lines, l.Next = lines, lines[len(lines)-1].Seq
	}
	return l, nil
}

var errNoLevel = refuse(http.StatusNotFound, "restart it with another --log-level", "the level of this daemon's log cannot be changed")

func (h *Handler) level(*request) (any, error) {
	if h.Level == nil {
		return nil, errNoLevel
	}
	return LogLevel{h.Level.Level()}, nil
}

func (h *Handler) setLevel(r *request) (any, error) {
	if h.Level == nil {
		return nil, errNoLevel
	}
	var want LogLevel
	in := json.NewDecoder(bytes.NewReader(r.body))
	in.DisallowUnknownFields()
	if err := in.Decode(&want); err != nil {
		return nil, refuse(http.StatusBadRequest, `send {"level": "debug"}`, "the body: %v", err)
	}
	was := h.Level.Level()
	if err := h.Level.SetLevel(want.Level); err != nil {
		return nil, refuse(http.StatusBadRequest, "give debug, info, warn or error", "%v", err)
	}
	if h.Changed != nil {
		h.Changed(r.from, "log-level", "from", was, "to", h.Level.Level())
	}
	return LogLevel{h.Level.Level()}, nil
}

// notUTF8 is what an answer has beside its own fields.
type notUTF8 struct {
	Texts map[string][]byte `json:"not_utf8,omitempty"`
}

// Encode returns the JSON of a document, which is a struct.
func Encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if texts := exactjson.NotUTF8(v); texts != nil {
		more, err := json.Marshal(notUTF8{texts})
		if err != nil {
			return nil, err
		}
		body = append(append(body[:len(body)-1], ','), more[1:]...)
	}
	return append(body, '\n'), nil
}

// Decode reads what Encode has returned into a pointer to a document.
func Decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return err
	}
	var texts notUTF8
	if err := json.Unmarshal(body, &texts); err != nil {
		return err
	}
	return exactjson.Restore(v, texts.Texts)
}
