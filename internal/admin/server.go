package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/logpace"
)

// What a client can take.
const (
	mostConnections = 64
	mostCalls       = 16
	mostBytes       = 1 << 20 // of a request
	headTime        = 5 * time.Second
	idleTime        = 30 * time.Second
	// stallTime is how long an answer may stay unread.
	stallTime = 30 * time.Second
	// flushTime is how long a line may wait for others.
	flushTime = 200 * time.Millisecond
	lineBytes = 32 << 10
	// aliveTime is how often a call that has nothing to say tells that it goes on.
	aliveTime = 5 * time.Second
)

// Server answers the calls of operators.
type Server struct {
	// StallTime is how long a client may leave an answer unread; 0: half a minute. Set it before Start.
	StallTime time.Duration
	// Audit gets who has changed what; it is not nil. Set it before Start.
	Audit *slog.Logger

	dir    string
	socket os.FileInfo // as it was made; nil before Start
	log    *slog.Logger
	pace   logpace.Pace
	mux    *http.ServeMux
	http   *http.Server
	calls  chan struct{}
	served sync.WaitGroup // connections, and Serve
}

// NewServer returns a server that will have its socket in a directory, which must be the
// caller's alone. about is what it answers for; nil: the calls end with the error why.
func NewServer(dir string, about Keeper, why error, log *slog.Logger) *Server {
	s := &Server{dir: dir, log: log, Audit: discard(), calls: make(chan struct{}, mostCalls)}
	s.mux = http.NewServeMux()
	for name, do := range callsOf(about) {
		if about == nil {
			do = func(context.Context, *message, func(any) error) error { return why }
		}
		s.handle(name, do)
	}
	s.http = &http.Server{
		Handler: s.mux, ReadHeaderTimeout: headTime, ReadTimeout: headTime, IdleTimeout: idleTime, MaxHeaderBytes: lineBytes,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ConnState: s.state, ConnContext: withCaller,
	}
	return s
}

// Handle has the server answer what is asked for below a path by h, which says for how long an answer may stay unread. Call it
// before Start.
func (s *Server) Handle(path string, h http.Handler) { s.mux.Handle(path, h) }

// handle answers a call by its name.
func (s *Server) handle(name string, do do) {
	do = s.audited(name, do)
	s.mux.HandleFunc("POST /v1/"+name, func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, do) })
}

// Start begins to serve. Errors are those of the socket: some file systems have none.
func (s *Server) Start() error {
	l, err := listen(s.dir)
	if err != nil {
		return err
	}
	if s.socket, err = os.Lstat(filepath.Join(s.dir, SocketName)); err != nil {
		_ = l.Close() // err is the first error
		return err
	}
	if s.StallTime == 0 {
		s.StallTime = stallTime
	}
	s.served.Go(func() {
		if err := s.http.Serve(&guarded{UnixListener: l, server: s, room: make(chan struct{}, mostConnections)}); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the admin socket has ended; kv3fs du and the like do not work until a restart", "err", err)
		}
	})
	return nil
}

// Close ends all calls, waits for them, and removes the socket. It may be called once, also
// without a Start. A call that hangs with the disk uses what its caller is going to close: the wait is as long as
// that, and its bound is the daemon's.
func (s *Server) Close() {
	_ = s.http.Close() // clients that are cut off see it
	s.served.Wait()
	at := filepath.Join(s.dir, SocketName)
	if is, err := os.Lstat(at); err == nil && s.socket != nil && os.SameFile(is, s.socket) { // not a successor's
		_ = os.Remove(at) // or the next one replaces it
	}
}

// state counts the connections that Close waits for.
func (s *Server) state(_ net.Conn, now http.ConnState) {
	switch now {
	case http.StateNew:
		s.served.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.served.Done()
	}
}

// guarded accepts the connections of those who may, as many as there may be.
type guarded struct {
	*net.UnixListener
	server *Server
	room   chan struct{}
}

// Accept waits for the next such connection.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		c, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		who, err := peerOf(c)
		if err != nil || who.UID != 0 && who.UID != uint32(os.Geteuid()) {
			if more, now := g.server.pace.Log("refused"); now {
				g.server.log.Warn("refused a user at the admin socket, which is for root and the daemon's own user", "uid", who.UID, "pid", who.PID, "more", more)
			}
			_ = c.Close() // nothing was said on it
			continue
		}
		select {
		case g.room <- struct{}{}:
			return &counted{Conn: c, from: who, free: sync.OnceFunc(func() { <-g.room })}, nil
		default:
			_ = c.Close() // the client says that it was cut off
		}
	}
}

// counted is a connection that takes room.
type counted struct {
	net.Conn
	from Caller
	free func()
}

// Close frees its room.
func (c *counted) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// do is a call: it decodes its request and sends values.
type do func(ctx context.Context, request *message, send func(any) error) error

func (s *Server) answer(w http.ResponseWriter, r *http.Request, do do) {
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	default:
		http.Error(w, fmt.Sprintf("%d calls at once are all that the daemon answers; try again later", mostCalls), http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var request message
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, "the request is no message: "+err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := &lines{control: http.NewResponseController(w), to: w, stall: s.StallTime}
	out.buffer = bufio.NewWriterSize(out, lineBytes)
	quiet := out.tellAlive()
	last := message{End: true}
	if err := do(r.Context(), &request, out.send); err != nil {
		last = message{Error: err.Error()}
	}
	quiet()
	if err := out.end(last); err != nil {
		s.log.Debug("an answer at the admin socket was cut off", "call", r.URL.Path, "err", err)
	}
}

// lines writes an answer, with a bound on the time that each part of it may take.
type lines struct {
	control *http.ResponseController
	to      io.Writer
	stall   time.Duration

	mu      sync.Mutex
	buffer  *bufio.Writer
	flushed time.Time
}

// Write is the buffer's.
func (l *lines) Write(b []byte) (int, error) {
	if err := l.control.SetWriteDeadline(time.Now().Add(l.stall)); err != nil {
		return 0, err
	}
	n, err := l.to.Write(b)
	if err == nil {
		err = l.control.Flush()
	}
	l.flushed = time.Now()
	return n, err
}

func (l *lines) send(v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.buffer.Write(b); err != nil {
		return err
	}
	if time.Since(l.flushed) > flushTime {
		return l.buffer.Flush()
	}
	return nil
}

func (l *lines) end(last message) error {
	b, err := line(last)
	if err != nil {
		return err
	}
	if _, err := l.buffer.Write(b); err != nil {
		return err
	}
	return l.buffer.Flush()
}

// tellAlive sends an empty line now and then, until it is told to end: a call that looks at many files
// may find nothing to send for long.
func (l *lines) tellAlive() (end func()) {
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		ticker := time.NewTicker(aliveTime)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			l.mu.Lock()
			err := l.buffer.WriteByte('\n')
			if err == nil {
				err = l.buffer.Flush()
			}
			l.mu.Unlock()
			if err != nil {
				return // the next send fails, too
			}
		}
	})
	return func() {
		close(done)
		ended.Wait()
	}
}
