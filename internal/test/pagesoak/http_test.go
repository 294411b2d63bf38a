package pagesoak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// caller sends requests as both clients do: through urllib3, with three retries after
// errors of the connection and 500, 502, 503 and 504.
type caller struct {
	base   string
	client *http.Client
	tally  *tally
}

const retries = 3

// backoff returns the backoff of urllib3 with a factor of 0.3: none before the first
// retry.
func backoff(retry int) time.Duration {
	if retry == 1 {
		return 0
	}
	return 300 * time.Millisecond << (retry - 1)
}

// answerLimit bounds an attempt. The clients have no limit, the service has one.
const answerLimit = 20 * time.Second

// post sends a request until it gets an answer, at most 1+retries times. sent is when the
// attempt that was answered began.
func (c *caller) post(ctx context.Context, path string, body, answer any) (sent time.Time, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return sent, err
	}
	for retry := range retries + 1 {
		if retry > 0 {
			c.tally.retries.Add(1)
			if !pause(ctx, backoff(retry)) {
				return sent, ctx.Err()
			}
		}
		sent = time.Now()
		var again bool
		if again, err = c.attempt(ctx, path, text, answer); !again || ctx.Err() != nil {
			return sent, err
		}
	}
	c.tally.gaveUp.Add(1)
	return sent, fmt.Errorf("%w: %w", errGaveUp, err)
}

var errGaveUp = errors.New("gave up")

func (c *caller) attempt(ctx context.Context, path string, body []byte, answer any) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return true, err
	}
	switch response.StatusCode {
	case 200:
		return false, json.Unmarshal(text, answer)
	case 204:
		return false, nil
	case 500, 502, 503, 504:
		return true, fmt.Errorf("%s: %s: %.200s", path, response.Status, text)
	default:
		return false, fmt.Errorf("%s %.200s: %s: %.200s", path, body, response.Status, text)
	}
}

// pause waits, and reports whether the context has not ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
