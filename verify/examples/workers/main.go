// Workers compress the files of a folder that several machines share. One worker at a time works on a file.
//
//	HOLDFAST_BACKEND=redis://localhost:6379 go run . /srv/inbox /srv/done
package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/redis" // redis:// and related URLs
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if len(os.Args) != 3 {
		log.Fatal("give two folders: of the files, and of the compressed files")
	}
	inbox, done := os.Args[1], os.Args[2]
	err := run(ctx, os.Getenv("HOLDFAST_BACKEND"), inbox, 20*time.Second, func(ctx context.Context, lease *holdfast.Lease, name string) error {
		return compressFile(ctx, filepath.Join(inbox, name), filepath.Join(done, name+".gz"), lease.Token())
	})
	if err != nil {
		log.Fatal(err)
	}
}

// work processes one file. Its context ends when the lease is lost.
type work func(ctx context.Context, lease *holdfast.Lease, name string) error

// run makes four workers call do with each file of inbox until ctx ends. Then they have the time grace to
// finish.
func run(ctx context.Context, backend, inbox string, grace time.Duration, do work) error {
	locks, err := holdfast.Open(ctx, backend, nil) // one client for all workers
	if err != nil {
		return err
	}
	defer locks.Close()
	names := make(chan string)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for name := range names {
				if err := processFile(ctx, locks, name, do); err != nil {
					log.Print(err)
				}
			}
		})
	}
	err = sendNames(ctx, inbox, names)
	close(names)
	rest, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err = errors.Join(err, locks.Shutdown(rest)) // after rest it ends the contexts of workers that still run
	workers.Wait()
	return err
}

// sendNames sends the names of the files in inbox, again and again, until ctx ends.
func sendNames(ctx context.Context, inbox string, names chan<- string) error {
	for {
		files, err := os.ReadDir(inbox)
		if err != nil {
			return err
		}
		rand.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] }) // let the machines begin with different files
		for _, file := range files {
			if !file.Type().IsRegular() {
				continue
			}
			select {
			case names <- file.Name():
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// processFile processes one file, unless another worker has it.
func processFile(ctx context.Context, locks *holdfast.Client, name string, do work) (err error) {
	lease, err := locks.TryAcquire(ctx, "inbox/"+name, nil)
	switch {
	case errors.Is(err, holdfast.ErrHeld), err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return err // the file will be tried again
	}
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()
	return do(lease.Context(), lease, name) // not ctx: a file that was begun is finished
}

// compressFile compresses a file and removes the original. File names are never reused. So a late worker finds
// no file, or replaces the result by the same content: no storage needs to compare tokens.
func compressFile(ctx context.Context, from, to string, token holdfast.Token) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another worker has done it since it was listed
	}
	if err != nil {
		return err
	}
	defer in.Close()
	part := fmt.Sprintf("%s.%d.part", to, token)
	out, err := os.Create(part)
	if err != nil {
		return err
	}
	defer os.Remove(part)
	packed := gzip.NewWriter(out)
	_, err = io.Copy(packed, &reader{ctx, in})
	if err := errors.Join(err, packed.Close(), out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, to); err != nil {
		return err
	}
	return os.Remove(from)
}

// reader reads until its context ends.
type reader struct {
	ctx  context.Context
	file io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx) // the loss of the lease, with its cause
	}
	return r.file.Read(p)
}
