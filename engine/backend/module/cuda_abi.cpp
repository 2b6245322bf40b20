#include "engine/backend/module/cuda_module.h"

namespace keyhole {

const char* cuda_module_abi() {
    return
#include KH_CUDA_ABI_FILE
        ;
}

}  // namespace keyhole
