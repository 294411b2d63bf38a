package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/keeper/curve"
)

// Keeper is what a server answers for.
type Keeper interface {
	State() keeper.State
	Usage(ctx context.Context, dir string, depth int, fn func(keeper.Usage) error) error
	Groups(dir string) ([]keeper.Group, error)
	List(ctx context.Context, q keeper.Query, fn func(keeper.Listed) error) error
	Describe(at string) (keeper.Description, error)
	Total(ctx context.Context, s keeper.Selection) (keeper.Total, error)
	Evict(ctx context.Context, s keeper.Selection, dryRun bool, fn func(keeper.Removal) error) error

	Quotas() []keeper.Quota
	SetQuota(dir string, bytes int64) error
	RemoveQuota(dir string) error
	TTLs() []keeper.TTL
	SetTTL(pattern string, unused time.Duration) error
	Pins() []keeper.Pin
	AddPin(p keeper.Pin) error
	RemovePin(p keeper.Pin) error
	Pattern(text string) string

	Curve() []curve.Point
	Served() (hitRatio, uses float64)
}

// Curve is what caches of other sizes would have served, and what this one did.
type Curve struct {
	Points   []CurvePoint `json:"points"`
	HitRatio float64      `json:"hit_ratio"`
	Uses     float64      `json:"uses"` // recent ones count more
}

// CurvePoint says what a cache of a size would have served.
type CurvePoint struct {
	CapacityBytes int64   `json:"capacity_bytes"`
	HitRatio      float64 `json:"hit_ratio"` // of uses
}

// The requests. A path is below the data directory.
type (
	none         struct{}
	usageRequest struct {
		Path  string `json:"path"`
		Depth int    `json:"depth"`
	}
	pathRequest struct {
		Path string `json:"path"`
	}
	evictRequest struct {
		keeper.Selection
		DryRun bool `json:"dry_run"`
	}
	quotaRequest struct {
		Path  string `json:"path"`
		Bytes int64  `json:"bytes"`
	}
	ttlRequest struct {
		Pattern string        `json:"pattern"`
		Unused  time.Duration `json:"unused_ns"`
	}
	pinsRequest struct {
		Patterns []string `json:"patterns"`
		keeper.Origin
	}
)

// call makes a do of a function that takes a request of a type. A field that it does not know may be what narrows the
// request, so it is an error.
func call[R any](fn func(ctx context.Context, r R, send func(any) error) error) do {
	return func(ctx context.Context, request *message, send func(any) error) error {
		var r R
		if err := request.decodeAll(&r); err != nil {
			return fmt.Errorf("the daemon does not understand the request, perhaps because it is of another version than this command: %w", err)
		}
		return fn(ctx, r, send)
	}
}

// chosen returns the name of a call that is narrowed by what an older daemon does not know, and overlooks: it would remove or
// pin everything. It knows no such name either, and says so.
func chosen(name string, narrowed bool) string {
	if narrowed {
		return name + "-chosen"
	}
	return name
}

// callsOf returns the calls by name.
func callsOf(k Keeper) map[string]do {
	calls := map[string]do{
		"state": call(func(_ context.Context, _ none, send func(any) error) error { return send(k.State()) }),
		"curve": call(func(_ context.Context, _ none, send func(any) error) error { return send(curveOf(k)) }),
		"usage": call(func(ctx context.Context, r usageRequest, send func(any) error) error {
			return k.Usage(ctx, r.Path, r.Depth, func(u keeper.Usage) error { return send(u) })
		}),
		"groups": call(func(ctx context.Context, r pathRequest, send func(any) error) error {
			return sendAll(send, func() ([]keeper.Group, error) { return k.Groups(r.Path) })
		}),
		"list": call(func(ctx context.Context, q keeper.Query, send func(any) error) error {
			return k.List(ctx, q, func(e keeper.Listed) error { return send(e) })
		}),
		"describe": call(func(_ context.Context, r pathRequest, send func(any) error) error {
			about, err := k.Describe(r.Path)
			if err != nil {
				return err
			}
			return send(about)
		}),
		"total": call(func(ctx context.Context, r keeper.Selection, send func(any) error) error {
			total, err := k.Total(ctx, r)
			if err != nil {
				return err
			}
			return send(total)
		}),
		"evict": call(func(ctx context.Context, r evictRequest, send func(any) error) error {
			return k.Evict(ctx, r.Selection, r.DryRun, func(one keeper.Removal) error { return send(one) })
		}),
		"quotas": call(func(_ context.Context, _ none, send func(any) error) error {
			return sendAll(send, func() ([]keeper.Quota, error) { return k.Quotas(), nil })
		}),
		"set-quota":    call(func(_ context.Context, r quotaRequest, _ func(any) error) error { return k.SetQuota(r.Path, r.Bytes) }),
		"remove-quota": call(func(_ context.Context, r pathRequest, _ func(any) error) error { return k.RemoveQuota(r.Path) }),
		"ttls": call(func(_ context.Context, _ none, send func(any) error) error {
			return sendAll(send, func() ([]keeper.TTL, error) { return k.TTLs(), nil })
		}),
		"set-ttl": call(func(_ context.Context, r ttlRequest, _ func(any) error) error { return setTTL(k, r) }),
		"pins": call(func(_ context.Context, _ none, send func(any) error) error {
			return sendAll(send, func() ([]keeper.Pin, error) { return k.Pins(), nil })
		}),
		"pin": call(func(_ context.Context, r pinsRequest, _ func(any) error) error {
			return each(r.Patterns, func(text string) error { return k.AddPin(keeper.Pin{Pattern: k.Pattern(text), Origin: r.Origin}) })
		}),
		"unpin": call(func(_ context.Context, r pinsRequest, _ func(any) error) error {
			return each(r.Patterns, func(text string) error { return unpin(k, keeper.Pin{Pattern: text, Origin: r.Origin}) })
		}),
	}
	for _, name := range []string{"evict", "pin", "unpin"} {
		calls[chosen(name, true)] = calls[name]
	}
	return calls
}

func curveOf(k Keeper) Curve {
	c := Curve{Points: []CurvePoint{}}
	c.HitRatio, c.Uses = k.Served()
	for _, p := range k.Curve() {
		c.Points = append(c.Points, CurvePoint{p.CapacityBytes, p.HitRatio})
	}
	return c
}

func sendAll[V any](send func(any) error, fn func() ([]V, error)) error {
	all, err := fn()
	for i := 0; i < len(all) && err == nil; i++ {
		err = send(all[i])
	}
	return err
}

// each calls fn with each text, up to the first error.
func each(texts []string, fn func(string) error) error {
	for _, text := range texts {
		if err := fn(text); err != nil {
			return err
		}
	}
	return nil
}

// unpin ends a pin, whose pattern is given as it is listed, or as it was made.
func unpin(k Keeper, p keeper.Pin) error {
	err := k.RemovePin(p)
	if pattern := k.Pattern(p.Pattern); errors.Is(err, unix.ENOENT) && pattern != p.Pattern {
		p.Pattern = pattern
		return k.RemovePin(p)
	}
	return err
}

// setTTL sets a TTL, or ends one, which is given as it is listed, or as it was made.
func setTTL(k Keeper, r ttlRequest) error {
	if r.Unused != 0 {
		return k.SetTTL(k.Pattern(r.Pattern), r.Unused)
	}
	for _, pattern := range []string{r.Pattern, k.Pattern(r.Pattern)} {
		if slices.ContainsFunc(k.TTLs(), func(t keeper.TTL) bool { return t.Pattern == pattern }) {
			return k.SetTTL(pattern, 0)
		}
	}
	return fmt.Errorf("TTL of %q: %w", r.Pattern, unix.ENOENT)
}
