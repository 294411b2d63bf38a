package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// engineClient calls as vLLM's and SGLang's clients do: a session with kept connections, and a call is repeated three times
// after 0, 0.6 and 1.2 s if its connection breaks or the status says that the server has failed.
type engineClient struct {
	http http.Client
	url  string
}

func (c *engineClient) post(path, body string, to any) error {
	const retries, factor = 3, 300 * time.Millisecond
	var all error
	for n := 0; n <= retries; n++ {
		if n > 1 {
			time.Sleep(factor << (n - 1))
		}
		answer, err := c.http.Post(c.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			all = errors.Join(all, err)
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch status := answer.StatusCode; {
		case err != nil || status == 500 || status == 502 || status == 503 || status == 504:
			all = errors.Join(all, err, errors.New(answer.Status))
			continue
		case status/100 != 2:
			return fmt.Errorf("%s: %s: %s", path, answer.Status, text)
		case len(text) == 0:
			return nil
		}
		if err := json.Unmarshal(text, to); err != nil {
			return fmt.Errorf("%s: %w: %s", path, err, text)
		}
		return nil
	}
	return fmt.Errorf("%s: in vain: %w", path, all)
}

// saves returns a worker that saves a key in each round, and finds it.
func (c *engineClient) saves(initialize, reserve, confirm, locate string, page func(answer map[string]json.RawMessage) (string, error)) func(*crowd, string) (func(int) error, error) {
	return func(*crowd, string) (func(int) error, error) {
		if err := c.post(initialize, `{"num_pages":1048576,"role":"worker"}`, &map[string]any{}); err != nil {
			return nil, err
		}
		return func(n int) error {
			key := fmt.Sprint("k", n)
			var got, found map[string]json.RawMessage
			if err := c.post(reserve, fmt.Sprintf(`{"rank":0,"keys":[[%q,""]]}`, key), &got); err != nil {
				return err
			}
			at, err := page(got)
			if err != nil {
				return err
			}
			if err := c.post(confirm, fmt.Sprintf(`{"rank":0,"confirmations":[[%q,%s]],"written_keys_to_confirm":[[%q,%s]],"pages_to_release":[]}`, key, at, key, at), &map[string]any{}); err != nil {
				return err
			}
			if err := c.post(locate, fmt.Sprintf(`{"rank":0,"keys":[%q]}`, key), &found); err != nil {
				return err
			}
			for _, v := range found {
				if text := string(v); strings.HasPrefix(text, "[") && text != "["+at+"]" {
					return fmt.Errorf("%s was written to page %s, and is at %s", key, at, text)
				}
			}
			return nil
		}, nil
	}
}

// pageEngines are workers that call a page service, in both protocols.
func pageEngines(url string) map[string]func(*crowd, string) (func(int) error, error) {
	vllm, sglang := &engineClient{url: url}, &engineClient{url: url}
	return map[string]func(*crowd, string) (func(int) error, error){
		"vllm": vllm.saves("/rank/0/initialize", "/keys/batch_allocate", "/keys/confirm_write", "/keys/get_locations", func(got map[string]json.RawMessage) (string, error) {
			var pages [][2]json.RawMessage
			if err := json.Unmarshal(got["results"], &pages); err != nil || len(pages) != 1 {
				return "", fmt.Errorf("no page: %s", got["results"])
			}
			return string(pages[0][1]), nil
		}),
		"sglang": sglang.saves("/0/initialize", "/0/reserve_and_allocate_page_indices", "/0/confirm_write", "/0/get_page_indices", func(got map[string]json.RawMessage) (string, error) {
			var pages [][2]json.RawMessage
			if err := json.Unmarshal(got["indices"], &pages); err != nil || len(pages) != 1 {
				return "", fmt.Errorf("no page: %v", got)
			}
			return string(pages[0][1]), nil
		}),
	}
}

// Engines call the page service all the time, while its daemon is upgraded, another process takes over, and that one is upgraded, too:
// each call is answered, and what was saved is found.
func TestPagesOutliveUpgrades(t *testing.T) {
	u := startUpgradable(t, "serve")
	c := workWith(t, u.mount, pageEngines("http://127.0.0.1:"+u.port(t, "page service listens")))
	upgrade := func() {
		t.Helper()
		c.awaitRounds(t)
		if out, status := u.upgrade(t); status != 0 {
			t.Fatalf("upgrade: %d: %s", status, out)
		}
		c.awaitRounds(t)
	}
	upgrade()
	for range 2 {
		next := runAs(t, detached, nil, binary(t), "msg=serving ", "serve", "--takeover", "--config", u.config)
		select {
		case <-u.exited:
		case <-time.After(time.Minute):
			t.Fatal("the process before does not end")
		}
		u.running = next
		upgrade()
	}
	c.end(t)
}

// So it is where the daemon is killed, and held.
func TestPagesOutliveKills(t *testing.T) {
	u := startUpgradable(t, "hold", "--", "serve")
	c := workWith(t, u.mount, pageEngines("http://127.0.0.1:"+u.port(t, "page service listens")))
	for n := 2; n < 5; n++ {
		c.awaitRounds(t)
		killAndAwait(t, u.pidOf(t))
		u.awaitSaid(t, "msg=serving ", n)
	}
	c.awaitRounds(t)
	c.end(t)
}
