//go:build unix

package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// ErrNoDaemon is returned by Dial where nobody serves a socket.
var ErrNoDaemon = errors.New("no daemon serves it")

// Client implements book.Book by asking a daemon.
type Client struct {
	http *http.Client
	path string
}

// connecting is how long a daemon has to accept a connection and to answer the
// first question: it answers from memory.
const connecting = 10 * time.Second

// Dial finds the daemon of a state directory and asks it once. ErrNoDaemon when
// none runs there; fs.ErrPermission when this user may not ask it.
func Dial(ctx context.Context, dir string) (*Client, error) {
	path := Path(dir)
	c := &Client{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			address, release, err := shorten(path)
			if err != nil {
				return nil, err
			}
			defer release()

			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		},
		MaxIdleConnsPerHost: 256,
	}}}

	ctx, cancel := context.WithTimeout(ctx, connecting)
	defer cancel()
	_, err := c.Standing(ctx)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("socket %s: %w", path, ErrNoDaemon)
	default:
		return nil, err
	}
}

// Close lets go of the connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()

	return nil
}

// Standing implements book.Book.
func (c *Client) Standing(ctx context.Context) (book.Standing, error) {
	return ask[book.Standing](ctx, c, http.MethodGet, "standing", nil)
}

// Get implements book.Book.
func (c *Client) Get(ctx context.Context, identity string) (ledger.Record, error) {
	return ask[ledger.Record](ctx, c, http.MethodGet, "record?identity="+url.QueryEscape(identity), nil)
}

// Apply implements book.Book.
func (c *Client) Apply(ctx context.Context, o book.Order) (ledger.Record, error) {
	wire, err := encodeOrder(o)
	if err != nil {
		return ledger.Record{}, err
	}

	return ask[ledger.Record](ctx, c, http.MethodPost, "order", wire)
}

// Forget implements book.Book.
func (c *Client) Forget(ctx context.Context, identity string, force bool) error {
	_, err := ask[struct{}](ctx, c, http.MethodPost, "forget", forgetting{Identity: identity, Force: force})

	return err
}

// SetAside implements book.Book.
func (c *Client) SetAside(ctx context.Context) (map[string][]byte, error) {
	return ask[map[string][]byte](ctx, c, http.MethodGet, "set-aside", nil)
}

// List implements book.Book.
func (c *Client) List(ctx context.Context, q book.Query) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		body, err := c.do(ctx, http.MethodPost, "list", q)
		if err != nil {
			yield(ledger.Record{}, err)
			return
		}
		// Its rest is not read when the caller stops: that ends the connection.
		defer body.Close()

		dec := json.NewDecoder(body)
		for {
			var line item
			if err := dec.Decode(&line); err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				yield(ledger.Record{}, fmt.Errorf("socket %s: the list ends early: %w", c.path, err))
				return
			}
			switch {
			case line.End:
				return
			case line.Error != nil:
				if !yield(ledger.Record{Identity: line.Identity}, line.Error) {
					return
				}
				if !errors.Is(line.Error, ledger.ErrCorrupt) {
					return
				}
			case line.Record != nil:
				if !yield(*line.Record, nil) {
					return
				}
			}
		}
	}
}

// ask does a request whose answer is one value.
func ask[A any](ctx context.Context, c *Client, method, what string, question any) (a A, err error) {
	body, err := c.do(ctx, method, what, question)
	if err != nil {
		return a, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&a); err != nil {
		return a, fmt.Errorf("socket %s: the answer cannot be read: %w", c.path, err)
	}
	// To the end, so that the connection can be used again.
	_, _ = io.Copy(io.Discard, body)

	return a, nil
}

// do returns the body of a good answer.
func (c *Client) do(ctx context.Context, method, what string, question any) (io.ReadCloser, error) {
	var body io.Reader
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return nil, fmt.Errorf("socket %s: %w", c.path, err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://ledger/v1/"+what, body)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", c.path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, fmt.Errorf("socket %s: %w", c.path, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}

	defer resp.Body.Close()
	var f failure
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil || f.Text == "" {
		return nil, fmt.Errorf("socket %s: it answers %s: the daemon is of another version", c.path, resp.Status)
	}

	return nil, &f
}
