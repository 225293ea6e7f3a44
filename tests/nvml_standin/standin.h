/* A stand-in for libnvidia-ml.so.1 that answers from a table (see table.c for its form).
 *
 * Functions and structures are those of nvml.h 13. What the table does not tell is not supported.
 * One lock is held from the beginning of a call to its end, so that control functions may be called
 * from any thread.
 */

#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

/* nvmlReturn_t */
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15,
    RESET_REQUIRED = 16, VERSION_MISMATCH = 18, ARGUMENT_VERSION_MISMATCH = 25
};

enum { INSTANCES_OF_A_GPU = 16, MAX_INSTANCES = 256 };

typedef unsigned long long natural;

struct number { natural whole; double real; };

struct answer {
    int code;
    int whole; /* of an entry of a batch: the whole call fails with the code */
    size_t count;
    const struct number *numbers;
    const char *text;
};

/* A GPU or a MIG device, as a handle points to it. Kept for good: a stale handle must be told. */
typedef struct device {
    char name[96]; /* as in the table: the index of a GPU, the UUID of a MIG device */
    int gpu;
    int is_mig;
    unsigned gpu_instance, compute_instance;
    int alive;
    struct device *next;
} *nvmlDevice_t;

struct event { int gpu; natural type, data; unsigned gpu_instance, compute_instance; };

/* One for each function of the library that was called. */
struct counter { const char *name; size_t key_length; unsigned long calls; struct counter *next; };

/* control.c: every function of the library is one CALL, under the lock. */
void enter(struct counter *counter);
int leave(int code);
void hold(void);
void let_go(void);
#define CALL(code)                                           \
    do {                                                     \
        static struct counter counted_ = {.name = __func__}; \
        enter(&counted_);                                    \
        return leave(code);                                  \
    } while (0)

int driver_state(void);
int device_state(nvmlDevice_t device);
void retire_devices(int gpu);

/* table.c */
#define NONE 0, NULL
#define ARGUMENTS(...) \
    sizeof((unsigned[]){__VA_ARGS__}) / sizeof(unsigned), (unsigned[]){__VA_ARGS__}
struct mig_place {
    char gpu[16];
    unsigned index, gpu_instance, compute_instance;
    const char *uuid;
};

int load_table(const char *path);
int table_loaded(void);
/* What is told under this name about this device; NULL where nothing is. */
const struct answer *look(const char *name, const char *about, size_t count, const unsigned *list);
/* The same, of the function that was entered; `scope` is added as ":scope" where it is not 0. */
const struct answer *look_entry(const char *about, unsigned entry, unsigned scope);
size_t table_events(const struct event **events);
size_t table_mig(const struct mig_place **places);
const struct counter *entered(void);

/* devices.c: the code of an answer, and its parts put where they belong. */
int answer_of(nvmlDevice_t device, size_t count, const unsigned *arguments,
              const struct answer **answer);
int answer_about(const char *about, const struct answer **answer);
natural number_at(const struct answer *answer, size_t position);
int unsigneds(nvmlDevice_t device, size_t count, const unsigned *arguments, size_t wanted,
              unsigned **targets);
int naturals(nvmlDevice_t device, size_t count, const unsigned *arguments, size_t wanted,
             natural **targets);
int text_into(char *buffer, size_t size, const struct answer *answer);
#define INTO(type, ...) sizeof((type *[]){__VA_ARGS__}) / sizeof(type *), (type *[]){__VA_ARGS__}
#define VERSION(structure, number) (unsigned)(sizeof(structure) | (number##u << 24))

/* What stands in the unused bytes of a 64-bit value: whoever reads too many bytes sees it. */
#define GARBAGE 0xDEADBEEFDEADBEEFull

#endif
