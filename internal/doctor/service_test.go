package doctor

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/engines"
)

func TestService(t *testing.T) {
	stuck := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/stuck/keys/batch_exists":
			<-stuck
		case r.Method == http.MethodPost && r.URL.Path == "/keys/batch_exists" && string(body) == `{"keys":[]}`:
			fmt.Fprint(w, `{"exists":[]}`)
		case r.URL.Path == "/other/keys/batch_exists":
			fmt.Fprint(w, `<html>`)
		case r.URL.Path == "/0/exists":
			http.Error(w, `{"detail":"rank not initialized"}`, http.StatusNotFound)
		default:
			http.Error(w, "what?", http.StatusInternalServerError)
		}
	}))
	defer service.Close()
	defer close(stuck)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, c := range []struct {
		what, url, engine string
		status            Status
	}{
		{"vLLM's", service.URL, engines.VLLM, OK},
		{"with a slash", service.URL + "/", engines.VLLM, OK},
		{"SGLang's", service.URL, engines.SGLang, OK},
		{"another service", service.URL + "/other", engines.VLLM, Failure},
		{"an error", service.URL + "/none", engines.VLLM, Failure},
		{"nobody", closed.URL, engines.VLLM, Failure},
		{"no URL", "://", engines.SGLang, Failure},
	} {
		want(t, c.what, checkService(t.Context(), c.url, c.engine), "pages", c.status)
	}
	began := time.Now()
	want(t, "stuck", checkService(t.Context(), service.URL+"/stuck", engines.VLLM), "pages", Failure)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("a stuck service took %v", took)
	}
}
