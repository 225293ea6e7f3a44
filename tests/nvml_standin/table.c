/* The table of answers: a text file with one answer a line.
 *
 *     DeviceGetClockInfo(0,1)<TAB>0<TAB>1980
 *     DeviceGetName(0)<TAB>0<TAB>"NVIDIA H100 80GB HBM3
 *     DeviceGetFieldValues(0,138:3)<TAB>3
 *
 * The key is the function without `nvml` and `_v2`, the device and the arguments; then comes the
 * return code, with a `!` before it where it is that of a whole batch, and then numbers in the
 * order of the structure's members and text, if any, last, after a quotation mark. Lines that start
 * with `event` and `mig` list what may be found: see `add_event` and `add_mig`.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { KEY_SIZE = 256, MAX_SHARED = 2, FIRST_SIZE = 1024 };

struct slot { char *key; size_t length; struct answer answer; };

static struct {
    char *content;
    struct slot *slots;
    size_t size, used;
    struct event *events;
    size_t event_count;
    struct mig_place *places;
    size_t place_count;
} table;

static size_t hash(const char *key, size_t length) {
    size_t value = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) value = (value ^ (unsigned char)key[i]) * 1099511628211u;
    return value;
}

static struct slot *place_of(struct slot *slots, size_t size, const char *key, size_t length) {
    size_t position = hash(key, length) & (size - 1);
    while (slots[position].key && (slots[position].length != length ||
                                   memcmp(slots[position].key, key, length) != 0))
        position = (position + 1) & (size - 1);
    return &slots[position];
}

static void grow(void) {
    size_t size = table.size ? MAX_SHARED * table.size : FIRST_SIZE;
    struct slot *slots = calloc(size, sizeof *slots);
    for (size_t i = 0; i < table.size; i++)
        if (table.slots[i].key)
            *place_of(slots, size, table.slots[i].key, table.slots[i].length) = table.slots[i];
    free(table.slots);
    table.slots = slots, table.size = size;
}

/* Numbers are separated by single spaces. */
static struct number *numbers_of(const char *text, size_t *count) {
    size_t most = 1;
    for (const char *c = text; *c && *c != '"'; c++) most += *c == ' ';
    struct number *numbers = calloc(most, sizeof *numbers);
    *count = 0;
    while (*text && *text != '"') {
        char *end;
        size_t length = strcspn(text, " \"");
        struct number *number = &numbers[(*count)++];
        number->real = strtod(text, &end);
        number->whole = *text == '-' ? (natural)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
        text += length;
        text += *text == ' ';
    }
    return numbers;
}

/* event<TAB>0<TAB>gpu type data gpu_instance compute_instance */
static void add_event(const struct answer *told) {
    table.events = realloc(table.events, (table.event_count + 1) * sizeof *table.events);
    const struct number *n = told->numbers;
    table.events[table.event_count++] = (struct event){
        (int)n[0].whole, n[1].whole, n[2].whole, (unsigned)n[3].whole, (unsigned)n[4].whole};
}

/* mig<TAB>0<TAB>gpu index gpu_instance compute_instance "uuid */
static void add_mig(const struct answer *told) {
    table.places = realloc(table.places, (table.place_count + 1) * sizeof *table.places);
    const struct number *n = told->numbers;
    struct mig_place *place = &table.places[table.place_count++];
    *place = (struct mig_place){"", (unsigned)n[1].whole, (unsigned)n[2].whole,
                                (unsigned)n[3].whole, told->text};
    snprintf(place->gpu, sizeof place->gpu, "%llu", n[0].whole);
}

static void add(char *line) {
    char *code = strchr(line, '\t');
    if (!code) return;
    *code++ = '\0';
    char *rest = strchr(code, '\t');
    struct answer answer = {.whole = *code == '!', .text = ""};
    answer.code = atoi(code + answer.whole);
    if (rest) {
        char *quote = strchr(++rest, '"');
        if (quote) answer.text = quote + 1;
        answer.numbers = numbers_of(rest, &answer.count);
    }
    if (strcmp(line, "event") == 0) { add_event(&answer); return; }
    if (strcmp(line, "mig") == 0) { add_mig(&answer); return; }
    if (MAX_SHARED * (table.used + 1) > table.size) grow();
    struct slot *slot = place_of(table.slots, table.size, line, strlen(line));
    table.used += slot->key == NULL;
    *slot = (struct slot){line, strlen(line), answer};
}

static void clear(void) {
    for (size_t i = 0; i < table.size; i++) free((void *)table.slots[i].answer.numbers);
    free(table.slots), free(table.events), free(table.places), free(table.content);
    memset(&table, 0, sizeof table);
}

int load_table(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return NOT_FOUND;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *content = malloc((size_t)size + 1);
    size_t read = fread(content, 1, (size_t)size, file);
    fclose(file);
    if (read != (size_t)size) { free(content); return NOT_FOUND; }
    content[size] = '\0';
    clear();
    table.content = content;
    grow();
    for (char *line = strtok(content, "\n"); line; line = strtok(NULL, "\n")) add(line);
    return SUCCESS;
}

int table_loaded(void) { return table.content != NULL; }

size_t table_events(const struct event **events) {
    *events = table.events;
    return table.event_count;
}

size_t table_mig(const struct mig_place **places) {
    *places = table.places;
    return table.place_count;
}

/* Keys are put together by hand: printf would cost more than all the rest of a call. */
static char *put_text(char *to, const char *text, size_t length) {
    memcpy(to, text, length);
    return to + length;
}

static char *put_number(char *to, unsigned value) {
    char digits[10];
    int count = 0;
    do digits[count++] = (char)('0' + value % 10); while (value /= 10);
    while (count) *to++ = digits[--count];
    return to;
}

static const struct answer *answer_to(const char *key, size_t length) {
    if (!table.size) return NULL;
    const struct slot *slot = place_of(table.slots, table.size, key, length);
    return slot->key ? &slot->answer : NULL;
}

static char *open_key(char *key, const char *name, size_t length, const char *about) {
    key = put_text(key, name, length);
    *key++ = '(';
    return put_text(key, about, strlen(about));
}

const struct answer *look(const char *name, const char *about, size_t count, const unsigned *list) {
    char key[KEY_SIZE];
    size_t length = name ? strlen(name) : entered()->key_length;
    char *end = open_key(key, name ? name : entered()->name + strlen("nvml"), length, about);
    for (size_t i = 0; i < count; i++) *end++ = ',', end = put_number(end, list[i]);
    *end++ = ')';
    return answer_to(key, (size_t)(end - key));
}

const struct answer *look_entry(const char *about, unsigned entry, unsigned scope) {
    char key[KEY_SIZE];
    char *end = open_key(key, entered()->name + strlen("nvml"), entered()->key_length, about);
    *end++ = ',';
    end = put_number(end, entry);
    if (scope) *end++ = ':', end = put_number(end, scope);
    *end++ = ')';
    return answer_to(key, (size_t)(end - key));
}
