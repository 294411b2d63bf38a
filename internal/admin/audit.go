package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Caller is who is at the other end of the socket.
type Caller struct {
	UID uint32
	PID int32
}

// Attributes are who that is, for a log. The login is who has logged in, where that is another user, as with sudo.
func (c Caller) Attributes() []any {
	all := []any{"user", userName(c.UID), "uid", c.UID, "pid", c.PID}
	proc := fmt.Sprint("/proc/", c.PID)
	if name, err := os.ReadFile(proc + "/comm"); err == nil { // it may have ended
		all = append(all, "program", strings.TrimSpace(string(name)))
	}
	const nobody = "4294967295"
	if login, err := os.ReadFile(proc + "/loginuid"); err == nil && string(login) != nobody {
		if uid, err := strconv.ParseUint(strings.TrimSpace(string(login)), 10, 32); err == nil && uint32(uid) != c.UID {
			all = append(all, "login", userName(uint32(uid)))
		}
	}
	return all
}

func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

type callerKey struct{}

// CallerOf returns who has made a request at the socket.
func CallerOf(ctx context.Context) (_ Caller, ok bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// withCaller is http.Server's ConnContext.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*counted); ok {
		return context.WithValue(ctx, callerKey{}, c.from)
	}
	return ctx
}

// changes are the calls that are logged with who has made them. What they are called when they are narrowed counts as well.
var changes = []string{"evict", "set-quota", "remove-quota", "set-ttl", "pin", "unpin"}

// audited logs a call that changes something, once it has ended.
func (s *Server) audited(name string, do do) do {
	name = strings.TrimSuffix(name, chosen("", true))
	if !slices.Contains(changes, name) {
		return do
	}
	return func(ctx context.Context, request *message, send func(any) error) error {
		values := 0
		err := do(ctx, request, func(v any) error {
			values++
			return send(v)
		})
		asked := attributesOf(request)
		for key := range slices.Chunk(asked, 2) {
			if key[0] == "dry_run" {
				return err // it has changed nothing
			}
		}
		attrs := append([]any{"call", name}, asked...)
		if name == "evict" {
			attrs = append(attrs, "files", values)
		}
		who, _ := CallerOf(ctx)
		s.audit(attrs, who, err)
		return err
	}
}

// audit logs what an operator did.
func (s *Server) audit(attrs []any, who Caller, err error) {
	attrs = append(attrs, who.Attributes()...)
	if err != nil {
		attrs = append(attrs, "err", err)
	}
	s.Audit.Info("an operator's command", attrs...)
}

// attributesOf are the fields of a request that are not empty.
func attributesOf(request *message) (all []any) {
	var fields map[string]any
	if json.Unmarshal(request.Value, &fields) != nil {
		return nil // the call has said so
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch v := fields[key].(type) {
		case nil:
		case bool:
			if v {
				all = append(all, key, v)
			}
		case string:
			if v != "" {
				all = append(all, key, v)
			}
		case float64:
			if name, ok := strings.CutSuffix(key, "_ns"); ok {
				all = append(all, name, time.Duration(v))
			} else if v != 0 {
				all = append(all, key, int64(v))
			}
		default:
			text, err := json.Marshal(v)
			if err == nil && string(text) != "[]" && string(text) != "{}" {
				all = append(all, key, string(text))
			}
		}
	}
	return all
}

// discard is the audit log of a server without one.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
