# Checks the choice of the CUDA module's architectures (cuda_architectures.cmake) for machines that are not at
# hand.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake)
set(nvcc13 "sm_75\nsm_80\nsm_86\nsm_87\nsm_88\nsm_89\nsm_90\nsm_100\nsm_110\nsm_103\nsm_120\nsm_121\n")
set(nvcc12 "sm_50\nsm_52\nsm_60\nsm_61\nsm_70\nsm_75\nsm_80\nsm_86\nsm_89\nsm_90\n")

function(expect wanted listed known architectures refused)
  kh_cuda_architectures("${wanted}" "${listed}" "${known}" got device why)
  if(NOT got STREQUAL architectures AND refused STREQUAL "")
    message(SEND_ERROR "'${wanted}' on '${listed}': got '${got}' (${device}), expected '${architectures}'")
  endif()
  if(refused STREQUAL "" AND NOT why STREQUAL "")
    message(SEND_ERROR "'${wanted}' on '${listed}': refused, ${why}")
  endif()
  if(NOT refused STREQUAL "" AND NOT why MATCHES "${refused}")
    message(SEND_ERROR "'${wanted}' on '${listed}': not refused by '${refused}' but '${why}'")
  endif()
endfunction()

expect("" "" "${nvcc13}" "75-virtual;90" "")
expect("" "NVIDIA H200, 9.0\n" "${nvcc13}" "90-real;75-virtual" "")
expect("" "NVIDIA A100, 8.0\nNVIDIA A100, 8.0\nNVIDIA T4, 7.5\n" "${nvcc13}" "80-real;75-real;75-virtual" "")
# nvidia-smi may list a device that it cannot ask.
expect("" "NVIDIA GeForce RTX 4090, [N/A]\n" "${nvcc13}" "75-virtual;90" "")
expect("" "Unable to determine the device handle\n" "${nvcc13}" "75-virtual;90" "")
# Newer than nvcc: PTX.
expect("" "NVIDIA GeForce RTX 5090, 12.0\n" "${nvcc12}" "90-virtual;75-virtual" "")
# Older than the kernels, alone and beside another.
expect("" "Tesla P100, 6.0\n" "${nvcc13}" "" "Tesla P100 .sm_60. has compute capability below 7.5")
expect("" "Tesla V100, 7.0\n" "${nvcc12}" "" "Tesla V100")
expect("" "Tesla V100, 7.0\nNVIDIA L4, 8.9\n" "${nvcc13}" "89-real;75-virtual" "")
expect("90" "" "${nvcc13}" "90" "")
expect("70" "" "${nvcc13}" "" "nvcc cannot build for sm_70; it knows sm_75, sm_80")
expect("packages" "" "${nvcc13}" "75-real;80-real;86-real;89-real;90-real;100-real;120-real;120-virtual" "")
expect("packages" "" "${nvcc12}" "75-real;80-real;86-real;89-real;90-real;90-virtual" "")
expect("packages" "" "sm_70" "" "nvcc knows none")
