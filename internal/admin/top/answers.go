package top

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/internal/admin/api"
)

// Answers are what a daemon told last.
type Answers struct {
	Status   api.Status
	History  api.History // of the last ten minutes
	Hits     api.Hits
	Usage    api.Usage
	Keeper   api.Keeping
	Curve    api.Curve
	Clients  api.Clients
	Pages    api.Pages
	Hosts    api.Hosts
	Findings api.Findings
	Log      api.Log
}

// Ask asks a daemon for a document of its API, by its path with its query.
type Ask func(ctx context.Context, path string, into any) error

// question is a document and where its answer goes.
type question struct {
	path string
	into any
}

// of returns where the answers go that are asked for by path.
func (a *Answers) of(path string) question {
	all := map[string]any{
		"status": &a.Status, "history": &a.History, "hits": &a.Hits, "usage": &a.Usage, "keeper": &a.Keeper, "curve": &a.Curve, "clients": &a.Clients, "pages": &a.Pages, "hosts": &a.Hosts, "findings": &a.Findings, "log": &a.Log,
	}
	query := map[string]string{"usage": "?depth=3&most=300", "log": "?most=200"}
	if a.History.Measured > 0 { // by a daemon that numbers steps: an older one knows no parameter after
		query["history"] = fmt.Sprint("?after=", a.History.Measured)
	}
	return question{path + query[path], all[path]}
}

// Fetch asks for documents. It keeps what it was told before unless all are answered, and returns why not.
func (a *Answers) Fetch(ctx context.Context, ask Ask, paths ...string) error {
	next := *a
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	questions := make([]question, len(paths))
	for i, path := range paths { // before any is asked: they say how much is known
		questions[i] = next.of(path)
	}
	errs := make([]error, len(paths))
	var asked sync.WaitGroup
	for i, q := range questions {
		reflect.ValueOf(q.into).Elem().SetZero() // JSON would be read into slices that others still use
		asked.Go(func() { errs[i] = ask(ctx, q.path, q.into) })
	}
	asked.Wait()
	for _, err := range errs {
		if err != nil {
			return err // one says enough
		}
	}
	if slices.Contains(paths, "history") {
		next.History = a.History.Join(next.History)
	}
	*a = next
	return nil
}
