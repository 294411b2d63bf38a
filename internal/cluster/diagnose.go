package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// diagnoseTimeout bounds diagnose, and answerTimeout how long a member may take to refuse a certificate.
const (
	diagnoseTimeout = 3 * time.Second
	answerTimeout   = time.Second
)

// diagnose says of each member what keeps this host from connecting to it, which etcd's client does not tell. nil: nothing that shows
// in a connection.
func diagnose(config Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), diagnoseTimeout)
	defer cancel()
	errs := make([]error, len(config.Endpoints))
	var wg sync.WaitGroup
	for i, e := range config.Endpoints {
		wg.Go(func() {
			if err := tryConnection(ctx, e, config.TLS); err != nil {
				errs[i] = fmt.Errorf("%s: %w", e, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func tryConnection(ctx context.Context, endpoint string, wanted *tls.Config) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	config := &tls.Config{InsecureSkipVerify: true} // only to see whether it speaks TLS
	if wanted != nil {
		config = wanted.Clone()
	}
	if config.ServerName == "" {
		if config.ServerName, _, err = net.SplitHostPort(endpoint); err != nil {
			return err
		}
	}
	config.NextProtos = []string{"h2"}
	secure := tls.Client(conn, config)
	err = secure.HandshakeContext(ctx)
	if wanted == nil {
		if err == nil {
			return errors.New("it wants TLS: name its authority (CA)")
		}
		return nil // it does not speak TLS, and is not asked to
	}
	if err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	// A certificate is refused after the handshake.
	if err := secure.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	var timeout net.Error
	if _, err := secure.Read(make([]byte, 1)); err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
		return fmt.Errorf("TLS: %w", err)
	}
	return nil
}
