/* Calls about the driver, a GPU or a MIG device that give numbers, text or a structure. */

#include <stdio.h>
#include <string.h>

#include "standin.h"

static int code_of(const struct answer *found, const struct answer **answer) {
    *answer = found;
    return found ? found->code : NOT_SUPPORTED;
}

int answer_of(nvmlDevice_t device, size_t count, const unsigned *arguments,
              const struct answer **answer) {
    int code = device_state(device);
    return code ? code : code_of(look(NULL, device->name, count, arguments), answer);
}

int answer_about(const char *about, const struct answer **answer) {
    int code = driver_state();
    return code ? code : code_of(look(NULL, about, NONE), answer);
}

natural number_at(const struct answer *answer, size_t position) {
    return position < answer->count ? answer->numbers[position].whole : 0;
}

int unsigneds(nvmlDevice_t device, size_t count, const unsigned *arguments, size_t wanted,
              unsigned **targets) {
    const struct answer *answer;
    int code = answer_of(device, count, arguments, &answer);
    for (size_t i = 0; i < wanted && !code; i++) *targets[i] = (unsigned)number_at(answer, i);
    return code;
}

int naturals(nvmlDevice_t device, size_t count, const unsigned *arguments, size_t wanted,
             natural **targets) {
    const struct answer *answer;
    int code = answer_of(device, count, arguments, &answer);
    for (size_t i = 0; i < wanted && !code; i++) *targets[i] = number_at(answer, i);
    return code;
}

int text_into(char *buffer, size_t size, const struct answer *answer) {
    if (strlen(answer->text) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, answer->text);
    return SUCCESS;
}

static int text_of(nvmlDevice_t device, char *buffer, size_t size) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    return code ? code : text_into(buffer, size, answer);
}

/* Text ---------------------------------------------------------------------------------------- */

#define TEXT(name) \
    int nvmlDeviceGet##name(nvmlDevice_t device, char *buffer, unsigned size) { \
        CALL(text_of(device, buffer, size)); \
    }
TEXT(Name)
TEXT(Serial)
TEXT(VbiosVersion)
TEXT(InforomImageVersion)
TEXT(BoardPartNumber)

int nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *buffer) {
    CALL(text_of(device, buffer, 64));
}

static int uuid_into(nvmlDevice_t device, char *buffer, size_t size) {
    int code = device_state(device);
    if (code || !device->is_mig) return code ? code : text_of(device, buffer, size);
    return text_into(buffer, size, &(struct answer){.text = device->name});
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *buffer, unsigned size) {
    CALL(uuid_into(device, buffer, size));
}

static int driver_into(char *buffer, size_t size) {
    const struct answer *answer;
    int code = answer_about("", &answer);
    return code ? code : text_into(buffer, size, answer);
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) { CALL(driver_into(buffer, size)); }

/* Numbers ------------------------------------------------------------------------------------- */

#define ONE(name) \
    int nvmlDeviceGet##name(nvmlDevice_t device, unsigned *value) { \
        CALL(unsigneds(device, NONE, INTO(unsigned, value))); \
    }
ONE(Architecture)
ONE(MinorNumber)
ONE(ModuleId)
ONE(VirtualizationMode) /* an enumeration in nvml.h; nvidia-ml-py makes room for 8 bytes */
ONE(PowerUsage)
ONE(EnforcedPowerLimit)
ONE(PowerManagementLimit)
ONE(PowerManagementDefaultLimit)
ONE(PerformanceState)
ONE(RetiredPagesPendingStatus)
ONE(CurrPcieLinkGeneration)
ONE(MaxPcieLinkGeneration)
ONE(GpuMaxPcieLinkGeneration)
ONE(CurrPcieLinkWidth)
ONE(MaxPcieLinkWidth)
ONE(PcieReplayCounter)
ONE(PersistenceMode)
ONE(ComputeMode)
ONE(AccountingMode)
ONE(NumFans)
ONE(MaxMigDeviceCount)

#define TWO(name) \
    int nvmlDeviceGet##name(nvmlDevice_t device, unsigned *first, unsigned *second) { \
        CALL(unsigneds(device, NONE, INTO(unsigned, first, second))); \
    }
TWO(CudaComputeCapability)
TWO(EccMode)
TWO(MigMode)
TWO(GspFirmwareMode)
TWO(PowerManagementLimitConstraints)
TWO(EncoderUtilization)
TWO(DecoderUtilization)
TWO(JpgUtilization)
TWO(OfaUtilization)

#define ONE_OF(name) \
    int nvmlDeviceGet##name(nvmlDevice_t device, unsigned which, unsigned *value) { \
        CALL(unsigneds(device, ARGUMENTS(which), INTO(unsigned, value))); \
    }
ONE_OF(ClockInfo)
ONE_OF(MaxClockInfo)
ONE_OF(Temperature)
ONE_OF(TemperatureThreshold)
ONE_OF(FanSpeed_v2)
ONE_OF(NvLinkState)
ONE_OF(NvLinkVersion)
ONE_OF(NvLinkRemoteDeviceType)

#define LARGE(name) \
    int nvmlDeviceGet##name(nvmlDevice_t device, natural *value) { \
        CALL(naturals(device, NONE, INTO(natural, value))); \
    }
LARGE(TotalEnergyConsumption)
LARGE(CurrentClocksEventReasons)
LARGE(CurrentClocksThrottleReasons)
LARGE(SupportedClocksEventReasons)
LARGE(SupportedClocksThrottleReasons)

int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                natural *count) {
    CALL(naturals(device, ARGUMENTS(type, counter), INTO(natural, count)));
}

int nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter,
                                    unsigned location, natural *count) {
    CALL(naturals(device, ARGUMENTS(type, counter, location), INTO(natural, count)));
}

int nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *frames,
                              unsigned *latency_us) {
    CALL(unsigneds(device, NONE, INTO(unsigned, sessions, frames, latency_us)));
}

int nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failure) {
    CALL(unsigneds(device, NONE, INTO(unsigned, correctable, uncorrectable, pending, failure)));
}

static int cuda_into(int *version) {
    const struct answer *answer;
    int code = answer_about("", &answer);
    if (!code) *version = (int)number_at(answer, 0);
    return code;
}

int nvmlSystemGetCudaDriverVersion(int *version) { CALL(cuda_into(version)); }

static int instance_into(nvmlDevice_t device, unsigned *instance, int compute) {
    int code = device_state(device);
    if (code) return code;
    if (!device->is_mig) return NOT_SUPPORTED;
    *instance = compute ? device->compute_instance : device->gpu_instance;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *instance) {
    CALL(instance_into(device, instance, 0));
}

int nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *instance) {
    CALL(instance_into(device, instance, 1));
}

/* GPU instances. Where one lies is told only where the table has it: it takes a privilege. */
struct gpu_instance { nvmlDevice_t gpu; unsigned id; };
struct gpu_instance_info { nvmlDevice_t gpu; unsigned id, profile; unsigned start, size; };

static int by_id_into(nvmlDevice_t gpu, unsigned id, struct gpu_instance **found) {
    static struct gpu_instance instances[MAX_INSTANCES];
    int code = device_state(gpu);
    if (code) return code;
    if (!look("GpuInstancePlacement", gpu->name, ARGUMENTS(id))) return NO_PERMISSION;
    *found = &instances[(gpu->gpu * INSTANCES_OF_A_GPU + id) % MAX_INSTANCES];
    **found = (struct gpu_instance){gpu, id};
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(nvmlDevice_t gpu, unsigned id, struct gpu_instance **found) {
    CALL(by_id_into(gpu, id, found));
}

static int info_into(struct gpu_instance *of, struct gpu_instance_info *info) {
    const struct answer *answer = look("GpuInstancePlacement", of->gpu->name, ARGUMENTS(of->id));
    if (!answer) return NOT_FOUND;
    *info = (struct gpu_instance_info){of->gpu, of->id, 0, 0, 0};
    if (answer->code) return answer->code;
    info->start = (unsigned)answer->numbers[0].whole;
    info->size = (unsigned)answer->numbers[1].whole;
    return SUCCESS;
}

int nvmlGpuInstanceGetInfo(struct gpu_instance *of, struct gpu_instance_info *info) {
    CALL(info_into(of, info));
}
