package hogs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// pagesKeys reserves as many keys as it can, on as many pages as it can.
func pagesKeys(h *hog) error {
	client := &http.Client{Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	post := func(path string, body any) {
		text, _ := json.Marshal(body) // plain maps
		response, err := client.Post("http://"+h.Pages+"/ns/hog"+path, "application/json", bytes.NewReader(text))
		if !h.try(err) {
			h.rest(10 * time.Millisecond)
			return
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body) // only the status counts
		h.count(response.Status)
	}
	post("/0/initialize", map[string]any{"num_pages": 1 << 31})
	for h.Running() {
		keys := make([][2]string, 500)
		for i := range keys {
			keys[i][0] = fmt.Sprintf("%032x%032x", rand.Uint64(), rand.Uint64())
		}
		post("/0/reserve_and_allocate_page_indices", map[string]any{"keys": keys})
		h.rest(20 * time.Millisecond)
	}
	return nil
}

// pagesSlow begins requests with large bodies, of which a byte comes now and then.
func pagesSlow(h *hog) error {
	loop(h, 32, func(int) {
		c, err := net.Dial("tcp", h.Pages)
		if !h.try(err) {
			h.rest(10 * time.Millisecond)
			return
		}
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST /ns/hog/0/exists HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", h.Pages, 8<<20)
		for err == nil && h.Running() {
			h.rest(200 * time.Millisecond)
			_, err = c.Write([]byte(" "))
		}
		h.try(err)
	})
	return nil
}

// pagesSilent opens connections and says nothing.
func pagesSilent(h *hog) error {
	allFiles()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for range h.many(1000, 4500) {
		c, err := net.DialTimeout("tcp", h.Pages, time.Second)
		if !h.try(err) || !h.Running() {
			break
		}
		held = append(held, c)
	}
	h.rest(2 * time.Second)
	return nil
}
