// Reads rows of one table out of a binlog with go-mysql, and only decodes them. The argument is a job as JSON; prints
// rows a second of real time and microseconds of CPU a row, from the first rows event on.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

type job struct {
	Host     string
	Port     uint16
	User     string
	Password string
	File     string
	Table    string
	Rows     int
}

func used() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func main() {
	var wanted job
	if err := json.Unmarshal([]byte(os.Args[1]), &wanted); err != nil {
		log.Fatal(err)
	}
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: uint32(os.Getpid() + 600_000),
		Flavor:   mysql.MySQLFlavor,
		Host:     wanted.Host,
		Port:     wanted.Port,
		User:     wanted.User,
		Password: wanted.Password,
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	stream, err := syncer.StartSync(mysql.Position{Name: wanted.File, Pos: 4})
	if err != nil {
		log.Fatal(err)
	}
	var rows, first int
	var begun time.Time
	var before time.Duration
	for rows < wanted.Rows {
		event, err := stream.GetEvent(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		read, ok := event.Event.(*replication.RowsEvent)
		if !ok || string(read.Table.Table) != wanted.Table {
			continue
		}
		if read.Type() == replication.EnumRowsEventTypeUpdate {
			rows += len(read.Rows) / 2 // before and after
		} else {
			rows += len(read.Rows)
		}
		if begun.IsZero() {
			first, begun, before = rows, time.Now(), used()
		}
	}
	counted := float64(rows - first)
	fmt.Printf("{\"rows_per_second\": %f, \"cpu_us\": %f}\n",
		counted/time.Since(begun).Seconds(), float64((used()-before).Microseconds())/counted)
	os.Exit(0) // what it has read ahead is not needed
}
