# Runs PROGRAM with ARGUMENTS and ends with an error unless it succeeds and prints exactly what EXPECTED holds.
execute_process(COMMAND "${PROGRAM}" ${ARGUMENTS} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
file(READ "${EXPECTED}" expected)
if(NOT result EQUAL 0 OR NOT output STREQUAL expected)
  message(FATAL_ERROR "ended with ${result}; expected:\n${expected}\ngot:\n${output}\n${errors}")
endif()
