package admin

import (
	"context"
	"errors"
	"time"
)

// Upgrader has a daemon execute another program in place of its own, which goes on where it is.
type Upgrader interface {
	// Upgrade executes a program, "": that of the daemon's path. It calls begun right before, and returns only if it is not executed: then
	// nothing has changed.
	Upgrade(ctx context.Context, program string, by Caller, begun func(Begun) error) error
	Successor() Successor
}

// Begun says that a program is executed now.
type Begun struct {
	Token string `json:"token"` // by which Successor is known
	PID   int    `json:"pid"`
}

// Successor is a daemon as one knows it that waits for it.
type Successor struct {
	Token   string `json:"token"` // of Begun; "": it was not executed by another one
	PID     int    `json:"pid"`
	Version string `json:"version"`
	Ready   bool   `json:"ready"`
	// Pause is how long clients have waited.
	Pause time.Duration `json:"pause_ns"`
	// MountKept says that the mount has gone on; else its clients were cut off.
	MountKept bool `json:"mount_kept"`
}

type programRequest struct {
	Program string `json:"program"`
}

// Upgrades has the server offer it. Call it before Start.
func (s *Server) Upgrades(by Upgrader) {
	s.handle("upgrade", call(func(ctx context.Context, r programRequest, send func(any) error) error {
		who, _ := CallerOf(ctx)
		return by.Upgrade(ctx, r.Program, who, func(b Begun) error { return send(b) })
	}))
	s.handle("successor", call(func(_ context.Context, _ none, send func(any) error) error { return send(by.Successor()) }))
}

// Upgrade has the daemon execute a program, and returns when that has begun.
func (c *Client) Upgrade(ctx context.Context, program string) (Begun, error) {
	var begun Begun
	err := values(ctx, c, "upgrade", programRequest{program}, func(b Begun) error {
		begun = b
		return nil
	})
	if begun.Token != "" && errors.Is(err, errCutOff) {
		return begun, nil
	}
	if err == nil {
		err = c.failed(errors.New("the daemon has neither executed the program nor said why"))
	}
	return begun, err
}

// Successor returns what the daemon that answers now is.
func (c *Client) Successor(ctx context.Context) (Successor, error) {
	return one[Successor](ctx, c, "successor", none{})
}
