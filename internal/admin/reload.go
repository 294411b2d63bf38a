package admin

import "context"

// Setting is one that a reload found changed.
type Setting struct {
	Name string `json:"name"`
	From string `json:"from"` // "": it was not set, or it is secret
	To   string `json:"to"`
	// Restart says why it has no effect before a restart; "": it is in effect.
	Restart string `json:"restart"`
}

// Reload has a daemon read its configuration again. After an error nothing has changed.
type Reload func(ctx context.Context, by Caller) ([]Setting, error)

// Reloads has the server offer it. Call it before Start.
func (s *Server) Reloads(reload Reload) {
	s.handle("reload", call(func(ctx context.Context, _ none, send func(any) error) error {
		who, _ := CallerOf(ctx)
		return sendAll(send, func() ([]Setting, error) { return reload(ctx, who) })
	}))
}

// Reload has the daemon read its configuration again, and returns what is different. Its errors are about that
// configuration.
func (c *Client) Reload(ctx context.Context) ([]Setting, error) {
	return collect[Setting](ctx, c, "reload", none{})
}
