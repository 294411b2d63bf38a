// Package daemons asks daemons how they are, by the API of their admin address.
package daemons

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
)

// Bounds of one look at all daemons.
const (
	patience = 3 * time.Second  // for one daemon
	limit    = 20 * time.Second // for all: what is not read by then is said
	atOnce   = 16
	mostBody = 1 << 20
)

// Daemon is one to be asked.
type Daemon struct {
	Node    string
	Address string // HOST:PORT
}

// Answer is what a daemon said.
type Answer struct {
	Status api.Status
	Hits   api.Hits
	Pages  api.Pages
	Hosts  api.Hosts
}

// Result is the answer of a daemon, or why there is none.
type Result struct {
	Answer
	Err error
}

// Ask asks daemons, which have one certificate and token, and returns what each said, by node.
func Ask(ctx context.Context, trust []byte, serverName, token string, all []Daemon) (map[string]Result, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(trust) {
		return nil, errors.New("there is no certificate to trust")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}, MaxConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	c := client{http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, token: token}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	results := make([]Result, len(all))
	turns := make(chan struct{}, atOnce)
	var asking sync.WaitGroup
	for i, d := range all {
		asking.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			results[i].Answer, results[i].Err = c.ask(ctx, d.Address)
		})
	}
	asking.Wait()
	byNode := make(map[string]Result, len(all))
	for i, d := range all {
		byNode[d.Node] = results[i]
	}
	return byNode, nil
}

type client struct {
	http  *http.Client
	token string
}

func (c client) ask(ctx context.Context, address string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var a Answer
	for _, part := range []struct {
		name string
		into any
	}{{"status", &a.Status}, {"hits", &a.Hits}, {"pages", &a.Pages}, {"hosts", &a.Hosts}} {
		if err := c.get(ctx, address, part.name, part.into); err != nil {
			return Answer{}, err
		}
	}
	return a, nil
}

func (c client) get(ctx context.Context, address, what string, into any) error {
	url := fmt.Sprintf("https://%s/api/v1/%s", address, what)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, mostBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", url, err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answers %s", url, response.Status)
	case len(body) > mostBody:
		return fmt.Errorf("%s answers more than %d bytes", url, mostBody)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s answers what is no JSON of kv3fs: %w", url, err)
	}
	return nil
}
