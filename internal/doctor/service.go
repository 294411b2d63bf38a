package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/engines"
)

const (
	defaultService = "http://127.0.0.1:18000"
	// servicePatience is what vLLM's scheduler can bear (clients.md, R40).
	servicePatience = time.Second
	mostAnswerBytes = 64 << 10
)

// checkService asks the page service a question that needs no state. engine is
// "" where nobody is known to need it.
func checkService(ctx context.Context, url, engine string) Finding {
	const id = "pages"
	needed := url != ""
	if !needed {
		url = defaultService
	}
	question := "/keys/batch_exists"
	if engine == engines.SGLang {
		question = "/0/exists"
	}
	began := time.Now()
	status, answer, err := post(ctx, strings.TrimSuffix(url, "/")+question, `{"keys":[]}`)
	elapsed := time.Since(began).Round(time.Millisecond / 10)
	f := Finding{ID: id, Status: Failure, Needed: fmt.Sprintf("a page service for %s that answers within %v", engine, servicePatience)}
	if !needed {
		f.Status, f.Needed = Note, "nothing, unless it is for vLLM, or for SGLang with a metadata server"
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		f.Found = fmt.Sprintf("%s: no answer within %v", url, servicePatience)
		if !needed {
			f.Status = Warning // somebody's service hangs
		}
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Found = fmt.Sprintf("nobody listens at %s", url)
	case err != nil:
		f.Found = fmt.Sprintf("%s: %v", url, err)
	case understood(engine, status, answer):
		return ok(id, "%s answers in %v", url, elapsed)
	default:
		f.Found = fmt.Sprintf("what listens at %s is no page service of this kind: POST %s is answered with %d", url, question, status)
	}
	if needed {
		f.Fix = serviceFix(engine)
	}
	return f
}

// serviceFix starts the service that comes with an engine.
func serviceFix(engine string) string {
	if engine == engines.SGLang {
		return "python3 -m sglang.srt.mem_cache.storage.hf3fs.mini_3fs_metadata_server --port 18000"
	}
	return "start vLLM's hf3fs_metadata_server with --port 18000; vLLM asks no other port"
}

// understood says whether that was a page service. SGLang's knows no rank before
// an engine has introduced itself: 404.
func understood(engine string, status int, answer []byte) bool {
	if engine == engines.SGLang {
		return status == http.StatusOK || status == http.StatusNotFound
	}
	var reply struct {
		Exists *[]bool `json:"exists"`
	}
	return status == http.StatusOK && json.Unmarshal(answer, &reply) == nil && reply.Exists != nil
}

func post(ctx context.Context, url, body string) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, servicePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	// Of its own, without a proxy: engines talk to their own host.
	transport := &http.Transport{DisableKeepAlives: true}
	reply, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer reply.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(reply.Body, mostAnswerBytes))
	return reply.StatusCode, answer, err
}
