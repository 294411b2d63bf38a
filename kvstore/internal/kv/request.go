package kv

import "context"

type requestKey struct{}

// WithRequestID returns a context whose lookups are logged under an id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// RequestID returns what WithRequestID has set, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}
