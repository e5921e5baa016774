package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"time"
)

// createArchive writes a file with what pack makes of files.
func createArchive(name string, pack func(io.Writer, []file, time.Time) error, files []file, date time.Time) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(pack(f, files, date), f.Close())
}

// writeTarball writes files as a tar archive that gzip has made small. They belong to root.
func writeTarball(w io.Writer, files []file, date time.Time) error {
	small := gzip.NewWriter(w)
	all := tar.NewWriter(small)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: int64(f.mode.Perm()), Size: int64(len(f.text)), ModTime: date, Uname: "root", Gname: "root", Format: tar.FormatGNU}
		header.Typeflag = tar.TypeReg
		if f.mode.IsDir() {
			header.Typeflag = tar.TypeDir
		}
		if err := all.WriteHeader(header); err != nil {
			return err
		}
		if _, err := all.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(all.Close(), small.Close())
}

// writeZip writes files as a zip archive.
func writeZip(w io.Writer, files []file, date time.Time) error {
	all := zip.NewWriter(w)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: date}
		header.SetMode(f.mode)
		part, err := all.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := part.Write(f.text); err != nil {
			return err
		}
	}
	return all.Close()
}

// gzipText returns text as manual pages and changelogs are installed: small, and without a date.
func gzipText(text []byte) []byte {
	var small bytes.Buffer
	w, _ := gzip.NewWriterLevel(&small, gzip.BestCompression) // the level is valid
	w.Write(text)                                             // a buffer takes everything
	w.Close()
	return small.Bytes()
}
